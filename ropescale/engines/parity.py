"""The parity table: what an engine makes of every field of a schedule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..schedules import AsIs, compute
from .facts import Difference, How, Layers, Status

if TYPE_CHECKING:
    from .serving import Server, Serving

_FIELDS = {
    "linear": {"factor": "factor"},
    "dynamic": {"factor": "factor"},
    "yarn": {
        "factor": "factor",
        "original length": "original_max_position_embeddings",
        "beta_fast": "beta_fast",
        "beta_slow": "beta_slow",
        "truncate": "truncate",
    },
    "llama3": {
        "factor": "factor",
        "original length": "original_max_position_embeddings",
        "low_freq_factor": "low_freq_factor",
        "high_freq_factor": "high_freq_factor",
    },
    "proportional": {"partial_rotary_factor": "partial_rotary_factor", "factor": "factor"},
}
"""The fields that a rope type has, and transformers' keys for them."""

_USUAL = {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": True, "partial_rotary_factor": 1.0, "factor": 1.0}


@dataclass(frozen=True)
class Row:
    """One field of a schedule in one engine.

    Attributes:
        layers: the kind of layer, ``"all"`` where there is one table.
        field: such as ``factor``.
        asked: what the schedule says.
        status: what becomes of it.
        computes: what the engine computes.
        version: of the engine, that was looked at.
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
    """What is asked, field by field, as text: the frequencies, what they are computed from, and the scales."""
    found = {"frequencies": _frequencies(layers), "theta": _text(layers.parameters["rope_theta"])}
    if layers.is_partial and not layers.is_mla and layers.kind != "proportional":
        found["rotary dim"] = f"{layers.rope.rotary_dim} of {layers.rope.head_dim}"
    for field, key in _FIELDS.get(layers.kind, {}).items():
        found[field] = _text(layers.parameters.get(key, _USUAL.get(key, layers.rope.original_length)))
    if layers.kind in ("yarn", "longrope"):
        found["attention factor"] = _text(attention_factor(layers))
    if layers.is_mla and layers.parameters.get("mscale_all_dim"):
        found["softmax scale"] = f"mscale_all_dim {_text(layers.parameters['mscale_all_dim'])}"
    if layers.changes_with_length:
        found["switch"] = "at every length" if layers.kind == "dynamic" else f"past {layers.rope.original_length}"
    return found | {"max length": f"{layers.length}"}


def attention_factor(layers: Layers) -> float:
    """What cos and sin are multiplied by, as stock transformers computes it from these parameters."""
    rope = replace(layers.rope, scaling=layers.parameters, table=None, table_scale=1.0)
    return compute(AsIs(), rope, layers.length).attention_scale


LOST = ("dropped", "unsupported")

_INTO_FREQUENCIES = frozenset(["theta", "rotary dim", *(field for fields in _FIELDS.values() for field in fields)])
"""Fields that the frequencies are computed from."""


def rows(engine: Server, serving: Serving, layers: Layers) -> list[Row]:
    """One row per field that is asked, and one more for each difference of an older version."""
    differences = list(engine.served(serving, layers))
    current = {found.field: found for found in differences if not found.version}
    version = version_of(engine, serving)
    table = [_row(engine, version, layers, field, each, current.get(field)) for field, each in fields(layers).items()]
    beyond = [found for field, found in current.items() if field not in fields(layers)]
    table += [_row(engine, version, layers, found.field, _unasked(found.field), found) for found in beyond]
    older = list(_older(layers, differences))
    return [_without(older, row) for row in _consistent(table)] + older


def _unasked(field: str) -> str:
    """What a field is that no schedule says, and an engine changes."""
    return "1" if field == "softmax scale" else "-"


def _consistent(table: list[Row]) -> list[Row]:
    """Frequencies are not as asked where a field that goes into them is not, and no field is where they are lost."""
    frequencies, *rest = table
    ignored = [row for row in rest if row.field in _INTO_FREQUENCIES and row.status != "honoured"]
    if frequencies.status in LOST:
        kept = ("max length",) if frequencies.status == "unsupported" else ("max length", "theta", "rotary dim")
        changed = {"status": frequencies.status, "computes": "-", "how": frequencies.how}
        return [frequencies, *(row if row.field in kept else replace(row, **changed) for row in rest)]
    if frequencies.status == "honoured" and any(row.field == "switch" and row.status != "honoured" for row in rest):
        return [replace(frequencies, status="recomputed", computes="not those of every length: see switch"), *rest]
    if frequencies.status == "honoured" and ignored:
        computes, how = f"with its own {ignored[0].field}", ignored[0].how
        return [replace(frequencies, status="recomputed", computes=computes, how=how), *rest]
    return table


def _without(older: list[Row], row: Row) -> Row:
    """A row whose version leaves out those that have a row of their own for the field."""
    apart = {each.version for each in older if each.field == row.field}
    return replace(row, version=", ".join(each for each in row.version.split(", ") if each not in apart))


def version_of(engine: Server, serving: Serving) -> str:
    """The versions that the table is about: those looked at, without those that cannot compute this at all."""
    versions = engine.VERSION.split(", ")
    if not versions[1:]:
        return engine.VERSION
    found = (each for layers in serving.layers for each in engine.served(serving, layers))
    unable = {each.version for each in found if each.field == "frequencies" and each.status == "unsupported"}
    return ", ".join(version for version in versions if version not in unable)


def _row(engine: Server, version: str, layers: Layers, field: str, asked: str, found: Difference | None) -> Row:
    how = engine.how(layers, field)
    if found is None:
        return Row(layers.key, field, asked, "honoured", asked, version, how)
    return Row(layers.key, field, asked, found.status, found.computes, version, found.how or "source")


def _older(layers: Layers, differences: list[Difference]) -> Iterator[Row]:
    asked = fields(layers)
    for found in differences:
        if found.version:
            text = asked.get(found.field, "")
            yield Row(layers.key, found.field, text, found.status, found.computes, found.version, found.how or "source")


def is_served(table: list[Row]) -> bool:
    """Whether the engine can compute the schedule at all, by what :func:`rows` says of one kind of layer."""
    scales = [row.status for row in table if row.field == "softmax scale"]
    return table[0].status not in LOST and "unsupported" not in scales


def _frequencies(layers: Layers) -> str:
    if layers.kind == "longrope":
        lists = "two lists" if layers.changes_with_length else "one list"
        return f"{layers.rope.pairs} divisors, {lists}"
    return f"{layers.rope.pairs} pairs, {layers.kind}"


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.10g}" if isinstance(value, (int, float)) else str(value)
