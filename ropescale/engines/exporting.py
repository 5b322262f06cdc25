"""How to serve a checkpoint in an engine, and what that engine will compute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checkpoints.locating import find_model, read_config
from ..checkpoints.record import original_config, read_record
from ..configs.reading import is_scaled, read_rope
from ..errors import ScheduleError
from ..escaping import argument
from ..files.reading import local_path
from ..formatting import brief
from ..planning.choosing import is_windowed
from ..planning.plan import make_plan
from ..request import Request, RequestOptions
from ..rope import Rope
from ..schedules import AsIs, compute, describe, names
from ..schedules.as_is import KINDS
from . import llama_cpp, mlx_lm, sglang, transformers4, transformers5, vllm
from .facts import Layers, sentence
from .parity import LOST, Row, is_served, rows, version_of
from .serving import Command, Server, Serving, as_it_lies, of_plan

if TYPE_CHECKING:
    from typing import Unpack

ENGINES: dict[str, Server] = {
    "vllm": vllm,
    "sglang": sglang,
    "llama.cpp": llama_cpp,
    "mlx-lm": mlx_lm,
    "transformers4": transformers4,
    "transformers5": transformers5,
}
"""The engines that a checkpoint can be exported for, under the names that the command line has for them."""


@dataclass(frozen=True)
class Export:
    """How to serve a checkpoint, and what will be computed.

    Attributes:
        model: its folder or Hub id.
        engine: the engine, as people call it.
        version: what was looked at.
        length: the context, in tokens.
        schedule: per kind of layer, as the command line has it; empty where the checkpoint is served as it lies.
        commands: what to paste; empty where the engine cannot compute the schedule.
        rows: the parity table.
        warnings: what the engine does otherwise, in sentences.
        notes: what the user should know about how the schedule's numbers came about.
        refusal: why there is no command and what to do instead, or None.
    """

    model: str
    engine: str
    version: str
    length: int
    schedule: Mapping[str, str]
    commands: list[Command]
    rows: list[Row]
    warnings: list[str]
    refusal: str | None
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self) | {"served": self.refusal is None}


def export(
    model: str | Path,
    engine: str,
    schedule: object = None,
    *,
    revision: str | None = None,
    **options: Unpack[RequestOptions],
) -> Export:
    """How to serve a checkpoint in an engine.

    Args:
        model: a checkpoint's folder (patched or not), or a Hub id; no weights are read.
        engine: a key of :data:`ENGINES`.
        schedule: serve the weights under this schedule, without a patched folder; what lies there when None.
        revision: branch, tag or commit of a Hub id.
        options: the fields of :class:`ropescale.request.Request`.

    Raises:
        ScheduleError: no such engine; or the schedule does not fit, or no configuration can say it.
        RopescaleError: the model cannot be read.
    """
    if engine not in ENGINES:
        raise ScheduleError(f"there is no engine {brief(engine)} to export for; choose from {', '.join(ENGINES)}")
    request = Request.of(schedule, **options)
    folder = find_model(model, revision, weights=False)
    name = argument(local_path(model)) if local_path(model).is_dir() else str(model)
    serving, schedules, notes = _serving(name, folder, revision, request)
    return replace(exported(ENGINES[engine], serving, schedules), notes=notes)


def _serving(
    name: str, folder: Path, revision: str | None, request: Request
) -> tuple[Serving, dict[str, str], tuple[str, ...]]:
    stored, record = read_config(folder), read_record(folder)
    original = original_config(stored, folder)
    there = read_rope(original)
    _refuse_unusable(read_rope(stored))
    source: dict[str, Any] = {"source": argument(str(record["source"])) if record else None, "revision": revision}
    if request.spec is None:
        request.refuse_without_schedule()
        specs = dict(record["spec"]) if record else {}
        given = _recorded(record, there) if record else {}
        source |= {"spec": words(specs, given), "scaled": scaling_option(given)}
        return as_it_lies(name, stored, _length(stored, record), **source), specs, ()
    plan = make_plan(original, request)
    if plan.unsavable:
        raise ScheduleError(plan.unsavable)
    if not plan.changes:
        raise ScheduleError("as-is changes nothing; leave the schedule out to serve the checkpoint as it lies")
    specs = {key: describe(each) for key, each in plan.schedules.items()}
    options = vars(request)
    scaled = scaling_option(options) if any(map(is_scaled, there.values())) else ()
    source |= {"spec": words(specs, options), "scaled": scaled}
    return of_plan(name, stored, plan, **source), specs, plan.notes


def _refuse_unusable(ropes: Mapping[str, Rope]) -> None:
    """Scaling without what its formula needs, which no engine could compute; kinds that are not known here may pass.

    Raises:
        ScheduleError: a key is missing or out of range.
    """
    for rope in ropes.values():
        if is_scaled(rope) and rope.scaling["rope_type"] in KINDS:
            compute(AsIs(), rope, rope.max_length)


def _recorded(record: Mapping[str, Any], there: Mapping[str, Rope]) -> dict[str, Any]:
    """The options under which a folder was patched, as far as they can be told from its record and its original."""
    return asked_of(there, record["original_length"], record.get("beneath", {}))


def asked_of(there: Mapping[str, Rope], lengths: Mapping[str, int], beneath: Mapping[str, str]) -> dict[str, Any]:
    """The options that a schedule takes on a source.

    Args:
        there: the geometry of the source, per layer type.
        lengths: the trained length that the schedule was computed from, for the layer types that it changed.
        beneath: the scaling that it was composed with, likewise.
    """
    scaled = any(is_scaled(there[key]) for key in lengths if key in there)
    other = [length for key, length in lengths.items() if key in there and length != there[key].original_length]
    options = {"on_top": bool(beneath), "replace_scaling": scaled and not beneath}
    return options | ({"original_length": other[0]} if other else {})


def scaling_option(options: Mapping[str, Any]) -> tuple[str, ...]:
    """``--replace-scaling`` or ``--on-top``, where one of them was given."""
    return tuple(f"--{key.replace('_', '-')}" for key in ("replace_scaling", "on_top") if options.get(key))


def words(specs: Mapping[str, str], options: Mapping[str, Any]) -> tuple[str, ...]:
    """The options of ``ropescale gguf`` that ask for the same; none where one name does not say it.

    Layers may have schedules of their own, those with a window may change as well, and a user's own schedule is known
    by its file.
    """
    if len(set(specs.values())) != 1 or next(iter(specs.values())).partition(":")[0] not in names():
        return ()
    if any(map(is_windowed, specs)):
        return ()
    length = options.get("original_length")
    told = ["--original-length", str(length)] if length else []
    return ("--schedule", *set(specs.values()), *told, *scaling_option(options))


def _length(stored: Mapping[str, Any], record: Mapping[str, Any] | None) -> int:
    """The context that a folder is meant for, in tokens: recorded, else what its configuration says."""
    if record is not None:
        return record["length"]
    ropes = read_rope(stored).values()
    stretch = [rope.scaling.get("factor", 1) for rope in ropes if _stretches(rope.scaling)]
    return round(max(rope.max_length for rope in ropes) * max(stretch, default=1))


def _stretches(scaling: Mapping[str, Any]) -> bool:
    """Dynamic NTK counts from ``max_position_embeddings``, which is the trained length there."""
    return scaling.get("rope_type") == "dynamic" and "alpha" not in scaling


def exported(engine: Server, serving: Serving, schedules: Mapping[str, str]) -> Export:
    """What :func:`export` says about something to serve, under schedules that the command line has for its layers."""
    spelled = engine.spelled(serving)
    tables = [rows(engine, spelled, layers) for layers in spelled.layers]
    commands = engine.serve(serving) if all(map(is_served, tables)) else []
    warnings, why = _warnings(engine, spelled), _why(engine, spelled)
    return Export(
        model=serving.model,
        engine=engine.NAME,
        version=version_of(engine, spelled),
        length=serving.length,
        schedule=schedules,
        commands=commands,
        rows=[row for table in tables for row in table],
        warnings=warnings if commands else [text for text in warnings if text != why],
        refusal=None if commands else _refusal(engine, spelled, why),
    )


def _warnings(engine: Server, serving: Serving) -> list[str]:
    """What the engine does otherwise in the version that the table is about, each sentence once.

    The commands see to the conditions under which it honours a field, but not to those on the frequencies themselves.
    """
    found = [each for layers in serving.layers for each in engine.served(serving, layers)]
    matters = [each for each in found if each.status != "honoured" or each.field == "frequencies"]
    told = [each for each in matters if each.warning and not each.version]
    return list(dict.fromkeys(sentence([each.who or engine.NAME], each.warning) for each in told))


def _lost(engine: Server, serving: Serving) -> Layers:
    """The layers for whose sake nothing can be served."""
    return next((each for each in serving.layers if not is_served(rows(engine, serving, each))), serving.layers[0])


def _why(engine: Server, serving: Serving) -> str:
    """The warning that says what is lost; empty where there is none."""
    found = engine.served(serving, _lost(engine, serving))
    lost = [each for each in found if each.status in LOST and each.warning and not each.version]
    return next((sentence([each.who or engine.NAME], each.warning) for each in lost), "")


def _refusal(engine: Server, serving: Serving, why: str) -> str:
    """Why nothing can be served, and what to do instead."""
    layers = _lost(engine, serving)
    because = f": {why.partition(';')[0].partition(': ')[2]}" if why.startswith(f"{engine.NAME}: ") else ""
    what = f"{layers.kind} for {layers.model_type}"
    return f"{engine.NAME} cannot compute this schedule ({what}){because}; {engine.way_out(layers)}"
