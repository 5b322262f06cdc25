"""How to serve a checkpoint in an engine, and what that engine will compute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from .engines import llama_cpp, sglang, transformers4, transformers5, vllm
from .engines.facts import sentence
from .engines.parity import Row, is_served, rows
from .engines.serving import Command, Server, Serving, as_it_lies, of_plan
from .errors import ScheduleError
from .plans import Spec, make_plan
from .records import original_config, read_record
from .rope import is_scaled, read_rope
from .schedules import describe, names
from .sources import find_model, local_path, read_config

ENGINES: dict[str, Server] = {
    "vllm": vllm,
    "sglang": sglang,
    "llama.cpp": llama_cpp,
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
    model: str | Path, engine: str, schedule: Spec | None = None, *, revision: str | None = None, **options: Any
) -> Export:
    """How to serve a checkpoint in an engine.

    Args:
        model: a checkpoint's folder (patched or not), or a Hub id; no weights are read.
        engine: a key of :data:`ENGINES`.
        schedule: serve the weights under this schedule, without a patched folder; what lies there when None.
        revision: branch, tag or commit of a Hub id.
        options: as for :func:`ropescale.patch_checkpoint`: ``factor``, ``target_length``, ``original_length``,
            ``overrides``, ``layers``, ``replace_scaling``, ``on_top``, ``freeze_at``.

    Raises:
        ScheduleError: no such engine; or the schedule does not fit, or no configuration can say it.
        RopescaleError: the model cannot be read.
    """
    if engine not in ENGINES:
        raise ScheduleError(f"there is no engine {engine!r} to export for; choose from {', '.join(ENGINES)}")
    folder = find_model(model, revision, weights=False)
    name = str(local_path(model)) if local_path(model).is_dir() else str(model)
    serving, schedules, notes = _serving(name, folder, schedule, revision, options)
    return replace(exported(ENGINES[engine], serving, schedules), notes=notes)


def _serving(
    name: str, folder: Path, schedule: Spec | None, revision: str | None, options: Mapping[str, Any]
) -> tuple[Serving, dict[str, str], tuple[str, ...]]:
    stored, record = read_config(folder), read_record(folder)
    original = original_config(stored, folder)
    source = {"source": str(record["source"]) if record else None, "revision": revision}
    if schedule is None:
        _refuse_options(options)
        specs = dict(record["spec"]) if record else {}
        fresh = record is not None and not any(map(is_scaled, read_rope(original).values()))
        spec = words(specs, {}) if fresh else ()
        return as_it_lies(name, stored, _length(stored, record), spec=spec, **source), specs, ()
    plan = make_plan(original, schedule, **options)
    if plan.unsavable:
        raise ScheduleError(plan.unsavable)
    if not plan.changes:
        raise ScheduleError("as-is changes nothing; leave --schedule out to serve the checkpoint as it lies")
    specs = {key: describe(each) for key, each in plan.schedules.items()}
    return of_plan(name, stored, plan, spec=words(specs, options), **source), specs, plan.notes


def words(specs: Mapping[str, str], options: Mapping[str, Any]) -> tuple[str, ...]:
    """The options of ``ropescale gguf`` that ask for the same; none where one name does not say it.

    Layers may have schedules of their own, and a user's own schedule is known by its file.
    """
    if len(set(specs.values())) != 1 or next(iter(specs.values())).partition(":")[0] not in names():
        return ()
    flags = [f"--{key.replace('_', '-')}" for key in ("replace_scaling", "on_top") if options.get(key)]
    length = options.get("original_length")
    return ("--schedule", *set(specs.values()), *(["--original-length", str(length)] if length else []), *flags)


def _refuse_options(options: Mapping[str, Any]) -> None:
    usual = {"layers": "full"}
    given = [key for key, value in options.items() if value and value != usual.get(key)]
    if given:
        named = "--set" if given[0] == "overrides" else f"--{given[0].replace('_', '-')}"
        raise ScheduleError(f"{named} belongs to a schedule, and none is given; add --schedule, or leave it out")


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
    return Export(
        model=serving.model,
        engine=engine.NAME,
        version=engine.VERSION,
        length=serving.length,
        schedule=schedules,
        commands=commands,
        rows=[row for table in tables for row in table],
        warnings=_warnings(engine, spelled),
        refusal=None if commands else _refusal(engine, spelled),
    )


def _warnings(engine: Server, serving: Serving) -> list[str]:
    """What the engine does otherwise in the version that the table is about, each sentence once."""
    found = [each for layers in serving.layers for each in engine.served(serving, layers)]
    told = [each for each in found if each.warning and each.status != "honoured" and not each.version]
    return list(dict.fromkeys(sentence([each.who or engine.NAME], each.warning) for each in told))


def _refusal(engine: Server, serving: Serving) -> str:
    """Why nothing can be served, and what to do instead."""
    lost = (each for each in serving.layers if not is_served(rows(engine, serving, each)))
    layers = next(lost, serving.layers[0])
    what = f"{layers.kind} for {layers.model_type}"
    return f"{engine.NAME} cannot compute this schedule ({what}); {engine.way_out(layers)}"
