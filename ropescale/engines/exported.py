"""The values that an engine computes for a schedule, field by field, and the commands that serve it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import get_args

from ..output.formatting import value_text
from ..planning.layers import is_windowed
from ..request import Request
from ..schedules import names
from .base import LOST, Command, Difference, Engine, How, Layers, Serving, Status, sentence

_FIELDS = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor", "original length", "beta_fast", "beta_slow", "truncate"),
    "llama3": ("factor", "original length", "low_freq_factor", "high_freq_factor"),
    "proportional": ("partial_rotary_factor", "factor"),
}
"""The fields of each rope type."""

_USUAL = {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": True, "partial_rotary_factor": 1.0, "factor": 1.0}

_INTO_FREQUENCIES = frozenset(["theta", "rotary dim", *(field for fields in _FIELDS.values() for field in fields)])
"""Fields that determine the frequencies."""


@dataclass(frozen=True)
class FieldRow:
    """One field of a schedule in one engine.

    Attributes:
        layers: the kind of layer, ``"all"`` if there is one table.
        field: such as ``factor``.
        asked: the schedule's value.
        status: how the engine treats it.
        computes: the engine's value.
        before: the first version that honours the field, if only earlier versions do not.
    """

    layers: str
    field: str
    asked: str
    status: Status
    computes: str
    before: str = ""


@dataclass(frozen=True)
class Export:
    """The commands that serve a checkpoint, and the values that the engine computes.

    Attributes:
        model: the folder or Hub id of the checkpoint.
        engine: the engine's usual name.
        version: the version that was checked.
        length: the context, in tokens.
        schedule: the spec per kind of layer; empty if the checkpoint is served unchanged.
        commands: the commands to paste; empty if the engine cannot compute the schedule.
        rows: the table, a row per field of the schedule.
        warnings: the engine's differences, in sentences.
        notes: remarks on the origin of the schedule's numbers.
        how: the evidence: for several kinds of layers the weakest.
        served_version: the version whose server the tests ran, for evidence by serving.
        refusal: why there is no command, with an alternative; None if there is one.
    """

    model: str
    engine: str
    version: str
    length: int
    schedule: Mapping[str, str]
    commands: list[Command]
    rows: list[FieldRow]
    warnings: list[str]
    refusal: str | None
    how: How
    served_version: str
    notes: tuple[str, ...] = ()

    def to_dict(self) -> Mapping[str, object]:
        """Returns the export as plain data."""
        return asdict(self) | {"served": self.refusal is None}


def exported(engine: Engine, serving: Serving, schedules: Mapping[str, str]) -> Export:
    """Builds the :class:`Export` of a serving, given the schedule of each kind of layer."""
    spelled = engine.spelled(serving)
    differences = [list(engine.remaining(spelled, layers)) for layers in spelled.layers]
    tables = [rows(layers, each) for layers, each in zip(spelled.layers, differences)]
    lost = next((i for i, table in enumerate(tables) if not is_served(table)), None)
    commands = engine.serve(serving) if lost is None else []
    # The commands meet the conditions for honoured fields, except those on the frequencies.
    told = [each for each in chain(*differences) if each.warning and not each.before]
    warnings = [each.warning for each in told if each.status != "honoured" or each.field == "frequencies"]
    refusal = None
    if not commands:
        layers, reasons = spelled.layers[lost or 0], [each for each in differences[lost or 0] if each.status in LOST]
        why = next((each.warning for each in reasons if each.warning and not each.before), "")
        warnings = [text for text in warnings if text != why]
        because = f": {why.partition(';')[0]}".replace("{s}", "s") if why else ""
        schedule = f"{layers.kind} for {layers.model_type}"
        refusal = f"{engine.name} cannot compute this schedule ({schedule}){because}; {engine.workaround(layers)}"
    return Export(
        model=serving.model,
        engine=engine.name,
        version=engine.version,
        length=serving.length,
        schedule=schedules,
        commands=commands,
        rows=list(chain(*tables)),
        warnings=[sentence([engine.name], text) for text in dict.fromkeys(warnings)],
        refusal=refusal,
        how=max(map(engine.evidence, spelled.layers), key=get_args(How).index),
        served_version=engine.served_version,
    )


def fields(layers: Layers) -> dict[str, str]:
    """Returns the requested fields as text: the frequencies, the values that determine them, and the scales."""
    parameters, rope, kind = layers.parameters, layers.rope, layers.kind
    lists = f"divisors, {'two lists' if layers.changes_with_length else 'one list'}"
    asked = {"frequencies": f"{rope.pairs} {lists if kind == 'longrope' else f'pairs, {kind}'}"}
    asked["theta"] = value_text(parameters["rope_theta"], 10)
    if layers.is_partial and not layers.is_mla and kind != "proportional":
        asked["rotary dim"] = f"{rope.rotary_dim} of {rope.head_dim}"
    for field in _FIELDS.get(kind, ()):
        key = "original_max_position_embeddings" if field == "original length" else field
        asked[field] = value_text(parameters.get(key, _USUAL.get(key, rope.original_length)), 10)
    if kind in ("yarn", "longrope"):
        asked["attention factor"] = value_text(layers.attention_factor, 10)
    if layers.is_mla and parameters.get("mscale_all_dim"):
        asked["softmax scale"] = f"mscale_all_dim {value_text(parameters['mscale_all_dim'], 10)}"
    if layers.changes_with_length:
        asked["switch"] = "at every length" if kind == "dynamic" else f"past {rope.original_length}"
    return asked | {"max length": f"{layers.length}"}


def rows(layers: Layers, differences: Sequence[Difference]) -> list[FieldRow]:
    """Returns one row per requested or changed field, and one per difference of earlier versions."""
    asked, current = fields(layers), {each.field: each for each in differences if not each.before}
    unasked = {field: "1" if field == "softmax scale" else "-" for field in current if field not in asked}
    table = []
    for field, text in (asked | unasked).items():
        row = current.get(field) or Difference(field, "honoured", text)
        table.append(FieldRow(layers.key, field, text, row.status, row.computes))
    return _consistent(table) + [
        FieldRow(layers.key, each.field, asked.get(each.field, ""), each.status, each.computes, each.before)
        for each in differences
        if each.before
    ]


def _consistent(table: list[FieldRow]) -> list[FieldRow]:
    """Marks frequencies that depend on a field that is not honoured, and all fields if the frequencies are lost."""
    first, *rest = table
    if first.status in LOST:
        kept = ("max length",) if first.status == "unsupported" else ("max length", "theta", "rotary dim")
        return [first, *(r if r.field in kept else replace(r, status=first.status, computes="-") for r in rest)]
    changed = [row.field for row in rest if row.status != "honoured"]
    if first.status != "honoured":
        return table
    if "switch" in changed:
        return [replace(first, status="recomputed", computes="see switch"), *rest]
    for field in changed:
        if field in _INTO_FREQUENCIES:
            return [replace(first, status="recomputed", computes=f"with its own {field}"), *rest]
    return table


def is_served(table: list[FieldRow]) -> bool:
    """Whether the engine can compute the schedule, judged by the rows of one kind of layer."""
    scales = [row.status for row in table if row.field in ("softmax scale", "attention factor")]
    return table[0].status not in LOST and "unsupported" not in scales


def scaling_option(request: Request) -> tuple[str, ...]:
    """Returns ``--replace-scaling`` or ``--on-top``, if one was given."""
    return tuple(f"--{key.replace('_', '-')}" for key in ("replace_scaling", "on_top") if getattr(request, key))


def applied_options(request: Request) -> tuple[str, ...]:
    """Returns the options of ``ropescale patch`` beside the schedule that ask for the same."""
    given = {
        "--original-length": request.original_length,
        "--layers": None if request.layers == "full" else request.layers,
        "--freeze-at": request.freeze_at,
    }
    stated = ((option, str(value)) for option, value in given.items() if value is not None)
    return (*chain.from_iterable(stated), *scaling_option(request))


def words(specs: Mapping[str, str], request: Request) -> tuple[str, ...]:
    """Returns the equivalent options of ``ropescale gguf``; none if one built-in schedule does not cover them.

    Layer types may have different schedules, sliding-window layers may change as well, and a user's own schedule needs
    its file.
    """
    if len(set(specs.values())) != 1 or next(iter(specs.values())).partition(":")[0] not in names():
        return ()
    if any(map(is_windowed, specs)):
        return ()
    length = request.original_length
    told = ["--original-length", str(length)] if length else []
    return ("--schedule", *set(specs.values()), *told, *scaling_option(request))
