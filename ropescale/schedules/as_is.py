"""A checkpoint's own rope parameters, read as transformers 5 computes them (modeling_rope_utils.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, Self

from ..errors import ScheduleError
from ..output.formatting import brief
from ..rope import Rope
from .base import BuiltIn, Frequencies, Schedule, Varying, build, compute, length_dependent, lookup, register, suggest


@register("as-is")
@dataclass(frozen=True)
class AsIs(BuiltIn):
    """The checkpoint's own frequencies, scaled or not, exactly as stock transformers computes them; writes nothing.

    Its rope parameters decide which pairs keep their frequency, and where the scale goes.
    """

    does: ClassVar[str] = "the checkpoint as it is"
    paper: ClassVar[str] = "the checkpoint's own rope parameters"
    # Unknown until bound to a geometry; treating it as static would be silently wrong.
    length_dependent: ClassVar[Any] = Varying(lambda self: self.__dict__.get("_varies", True))

    def __call__(self, rope: Rope, length: int) -> Frequencies:
        schedule, there = from_rope_parameters(rope)
        return compute(schedule, there, length)

    def bound(self, rope: Rope) -> Self:
        known = type(self)()
        object.__setattr__(known, "_varies", length_dependent(from_rope_parameters(rope)[0]))
        return known

    def rope_parameters(self, rope: Rope) -> Mapping[str, object] | None:
        if rope.table is not None:
            return None
        return dict(rope.scaling) or {"rope_type": "default"}


@lru_cache(maxsize=64)
def stock_table(rope: Rope, length: int) -> Frequencies:
    """Returns the table that stock transformers computes from a geometry's own rope parameters."""
    return compute(AsIs(), rope, length)


def from_rope_parameters(rope: Rope) -> tuple[Schedule, Rope]:
    """Returns the schedule that ``rope.scaling`` (transformers' keys) describes, and the geometry it applies to.

    The geometry carries the theta and the trained length of the parameters themselves. When ``rope.table``
    is set, it already holds the checkpoint's frequencies.

    Raises:
        ScheduleError: a rope type that transformers does not have, a key missing, or a value out of range.
    """
    if rope.table is not None:
        return build(lookup("base"), {}), rope
    stated = {key: value for key, value in rope.scaling.items() if value is not None}
    kind = _kind(stated)
    if kind not in _READERS:
        hint = suggest(kind, _READERS, f"transformers has {', '.join(_READERS)}")
        raise ScheduleError(f"the checkpoint's rope_type is {brief(kind)}, which ropescale cannot read; {hint}")
    theta = stated.get("rope_theta", rope.theta)
    name, fields, changed = _READERS[kind](replace(rope, theta=theta, scaling=stated))
    try:
        return build(lookup(name), fields), replace(changed, scaling=rope.scaling)
    except ScheduleError as error:
        raise ScheduleError(f"the checkpoint's rope parameters: {error}") from None


Reading = tuple[str, dict[str, object], Rope]
"""A schedule's name, its fields, and the geometry it applies to."""


def _kind(stated: Mapping[str, object]) -> str:
    kind = str(stated.get("rope_type", stated.get("type", "default")))
    if kind in ("su", "yarn") and "short_factor" in stated:
        return "longrope"  # as Phi-3's own configuration class renames them
    return "default" if kind == "mrope" else kind


def _default(rope: Rope) -> Reading:
    return "base", {}, rope


def _linear(rope: Rope) -> Reading:
    return "linear", _some(rope, "factor"), rope


def _dynamic(rope: Rope) -> Reading:
    """Transformers scales from ``max_position_embeddings``; HunYuan's fixed ``alpha`` is the NTK base change."""
    if rope.scaling.get("alpha"):
        return "ntk", {"factor": rope.scaling["alpha"]}, rope
    return "dynamic", _some(rope, "factor"), replace(rope, original_length=rope.max_length)


def _yarn(rope: Rope) -> Reading:
    rope = _original(rope)
    fields = _some(rope, "factor", "attention_factor", "mscale", "mscale_all_dim", "truncate")
    fields.setdefault("factor", max(rope.max_length / rope.original_length, 1.0))
    fields |= {key: rope.scaling[key] for key in ("beta_fast", "beta_slow") if rope.scaling.get(key)}  # 0: the default
    if rope.layer_type is not None:  # transformers looks for truncate beside the layer types, where it never is
        fields.pop("truncate", None)
    return "yarn", fields, rope


def _longrope(rope: Rope) -> Reading:
    return "longrope", _some(rope, "short_factor", "long_factor", "factor", "attention_factor"), _original(rope)


def _llama3(rope: Rope) -> Reading:
    return "llama3", _some(rope, "factor", "low_freq_factor", "high_freq_factor"), _original(rope)


def _proportional(rope: Rope) -> Reading:
    return "proportional", {"partial_rotary_factor": 1.0} | _some(rope, "partial_rotary_factor", "factor"), rope


_READERS = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "longrope": _longrope,
    "llama3": _llama3,
    "proportional": _proportional,
}


KINDS = tuple(_READERS)
"""The rope types that can be read."""


def _some(rope: Rope, *keys: str) -> dict[str, object]:
    return {key: rope.scaling[key] for key in keys if key in rope.scaling}


def _original(rope: Rope) -> Rope:
    return replace(rope, original_length=rope.scaling.get("original_max_position_embeddings", rope.original_length))
