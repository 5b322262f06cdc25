"""The table of ``ropescale export``: how an engine treats every field of a schedule."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial

from ..output.formatting import value_text
from .base.differences import LOST, Difference, How, Status
from .base.engine import Engine
from .base.layers import Layers

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
        layers: the kind of layer, ``"all"`` where there is one table.
        field: such as ``factor``.
        asked: the schedule's value.
        status: how the engine treats it.
        computes: the engine's value.
        version: the version of the engine that was checked.
        how: how it is known.
    """

    layers: str
    field: str
    asked: str
    status: Status
    computes: str
    version: str
    how: How


def fields(layers: Layers) -> dict[str, str]:
    """Returns the requested fields as text: the frequencies, the values that determine them, and the scales."""
    parameters, rope, kind = layers.parameters, layers.rope, layers.kind
    lists = f"divisors, {'two lists' if layers.changes_with_length else 'one list'}"
    found = {"frequencies": f"{rope.pairs} {lists if kind == 'longrope' else f'pairs, {kind}'}"}
    found["theta"] = value_text(parameters["rope_theta"], 10)
    if layers.is_partial and not layers.is_mla and kind != "proportional":
        found["rotary dim"] = f"{rope.rotary_dim} of {rope.head_dim}"
    for field in _FIELDS.get(kind, ()):
        key = "original_max_position_embeddings" if field == "original length" else field
        found[field] = value_text(parameters.get(key, _USUAL.get(key, rope.original_length)), 10)
    if kind in ("yarn", "longrope"):
        found["attention factor"] = value_text(layers.attention_factor, 10)
    if layers.is_mla and parameters.get("mscale_all_dim"):
        found["softmax scale"] = f"mscale_all_dim {value_text(parameters['mscale_all_dim'], 10)}"
    if layers.changes_with_length:
        found["switch"] = "at every length" if kind == "dynamic" else f"past {rope.original_length}"
    return found | {"max length": f"{layers.length}"}


def rows(engine: Engine, version: str, layers: Layers, found: Iterable[Difference]) -> list[FieldRow]:
    """Returns one row per requested or changed field, and one more per difference of an older version."""
    asked, differences = fields(layers), list(found)
    current = {each.field: each for each in differences if not each.version}
    unasked = {field: "1" if field == "softmax scale" else "-" for field in current if field not in asked}
    table = [
        _changed(layers, text, current[field], version)
        if field in current
        else FieldRow(layers.key, field, text, "honoured", text, version, engine.how(layers, field))
        for field, text in (asked | unasked).items()
    ]
    older = [_changed(layers, asked.get(each.field, ""), each, each.version) for each in differences if each.version]
    return [_without(older, row) for row in _consistent(table)] + older


def _changed(layers: Layers, asked: str, found: Difference, version: str) -> FieldRow:
    return FieldRow(layers.key, found.field, asked, found.status, found.computes, version, found.how)


def _consistent(table: list[FieldRow]) -> list[FieldRow]:
    """Marks frequencies computed from a field that is not honoured, and all fields where the frequencies are lost."""
    first, *rest = table
    if first.status in LOST:
        kept = ("max length",) if first.status == "unsupported" else ("max length", "theta", "rotary dim")
        lost = partial(replace, status=first.status, computes="-", how=first.how)
        return [first, *(row if row.field in kept else lost(row) for row in rest)]
    changed = [row for row in rest if row.status != "honoured"]
    ignored = [row for row in changed if row.field in _INTO_FREQUENCIES]
    if first.status != "honoured" or not changed:
        return table
    if any(row.field == "switch" for row in changed):
        return [replace(first, status="recomputed", computes="not those of every length: see switch"), *rest]
    if ignored:
        computes = f"with its own {ignored[0].field}"
        return [replace(first, status="recomputed", computes=computes, how=ignored[0].how), *rest]
    return table


def _without(older: list[FieldRow], row: FieldRow) -> FieldRow:
    """Removes from a row's version those that have a separate row for the field."""
    apart = {each.version for each in older if each.field == row.field}
    return replace(row, version=", ".join(each for each in row.version.split(", ") if each not in apart))


def version_of(engine: Engine, found: Iterable[Difference]) -> str:
    """Returns the versions that the table covers: all that were checked, except those that cannot compute this."""
    unable = {each.version for each in found if each.field == "frequencies" and each.status == "unsupported"}
    versions = engine.version.split(", ")
    return ", ".join(each for each in versions if each not in unable) if versions[1:] else engine.version


def is_served(table: list[FieldRow]) -> bool:
    """Whether the engine can compute the schedule at all, from the rows of one kind of layer."""
    scales = [row.status for row in table if row.field in ("softmax scale", "attention factor")]
    return table[0].status not in LOST and "unsupported" not in scales
