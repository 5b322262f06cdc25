"""A checkpoint's own rope parameters, interpreted as in transformers 5 (modeling_rope_utils.py)."""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, Self

from ..errors import ScheduleError
from ..files import Data, Json, present
from ..output.formatting import brief, suggest
from ..rope import Rope
from .base import BuiltIn, Frequencies, Schedule, Varying, build, compute, length_dependent, lookup, register


@register("as-is")
@dataclass(frozen=True)
class AsIs(BuiltIn):
    """The checkpoint's own frequencies, scaled or not, exactly as stock transformers computes them.

    The checkpoint's rope parameters determine the frequencies and the attention scale, and do not change.
    """

    does = "the unchanged checkpoint"
    paper = "the checkpoint's own rope parameters"
    # Unknown until bound to a geometry; until then True, because a wrong False would go unnoticed.
    length_dependent: ClassVar[Any] = Varying(lambda self: self.__dict__.get("_varies", True))

    def __call__(self, rope: Rope, length: int) -> Frequencies:
        schedule, own = from_rope_parameters(rope)
        return compute(schedule, own, length)

    def bound(self, rope: Rope) -> Self:
        known = type(self)()
        object.__setattr__(known, "_varies", length_dependent(from_rope_parameters(rope)[0]))
        return known

    def rope_parameters(self, rope: Rope) -> Json | None:
        if rope.table is not None:
            return None
        return dict(rope.scaling) or {"rope_type": "default"}


@lru_cache(maxsize=64)
def stock_table(rope: Rope, length: int) -> Frequencies:
    """Returns the table that stock transformers computes from a geometry's own rope parameters."""
    return compute(AsIs(), rope, length)


def from_rope_parameters(rope: Rope) -> tuple[Schedule, Rope]:
    """Returns the schedule that ``rope.scaling`` (transformers' keys) describes, and the geometry it applies to.

    The geometry has the theta and the trained length of these parameters. If ``rope.table`` is set, the table already
    contains the checkpoint's frequencies.

    Raises:
        ScheduleError: transformers has no such rope type, a key is missing, or a value is out of range.
    """
    if rope.table is not None:
        return build(lookup("base"), {}), rope
    stated = present(rope.scaling)
    kind = str(stated.get("rope_type", stated.get("type", "default")))
    if kind in ("su", "yarn") and "short_factor" in stated:
        kind = "longrope"  # as Phi-3's own configuration class renames them
    kind = "default" if kind == "mrope" else kind
    if kind not in KINDS:
        raise ScheduleError(
            f"the checkpoint's rope_type is {brief(kind)}, which ropescale cannot read; "
            + suggest(kind, KINDS, f"transformers has {', '.join(KINDS)}")
        )
    own = replace(rope, theta=stated.get("rope_theta", rope.theta), scaling=stated)
    name, fields, length = _reading(kind, own)
    try:
        return build(lookup(name), fields), replace(own, original_length=length, scaling=rope.scaling)
    except ScheduleError as error:
        raise ScheduleError(f"the checkpoint's rope parameters: {error}") from None


KINDS = "default linear dynamic yarn longrope llama3 proportional".split()
"""The supported rope types."""


def _reading(kind: str, rope: Rope) -> tuple[str, Data, int]:
    """Returns the name and fields of a rope type's schedule, and the trained length that the rope type uses."""
    stated = rope.scaling

    def some(*keys: str) -> Data:
        return {key: stated[key] for key in keys if key in stated}

    original = stated.get("original_max_position_embeddings", rope.original_length)
    match kind:
        case "linear":
            return "linear", some("factor"), rope.original_length
        case "dynamic" if stated.get("alpha"):  # HunYuan's fixed alpha is the NTK base change
            return "ntk", {"factor": stated["alpha"]}, rope.original_length
        case "dynamic":  # transformers scales from max_position_embeddings
            return "dynamic", some("factor"), rope.max_length
        case "yarn":
            fields = some("factor", "attention_factor", "mscale", "mscale_all_dim", "truncate")
            fields.setdefault("factor", max(rope.max_length / original, 1.0))
            fields |= {key: stated[key] for key in ("beta_fast", "beta_slow") if stated.get(key)}  # 0: the default
            if rope.layer_type is not None:  # transformers reads truncate only next to the layer types
                fields.pop("truncate", None)
            return "yarn", fields, original
        case "longrope":
            return "longrope", some("short_factor", "long_factor", "factor", "attention_factor"), original
        case "llama3":
            return "llama3", some("factor", "low_freq_factor", "high_freq_factor"), original
        case "proportional":
            fields = {"partial_rotary_factor": 1.0} | some("partial_rotary_factor", "factor")
            return "proportional", fields, rope.original_length
        case _:
            return "base", {}, rope.original_length
