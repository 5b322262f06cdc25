"""LongRoPE: Ding et al. 2024, "LongRoPE: Extending LLM Context Window Beyond 2 Million Tokens", arXiv:2402.13753."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from ..files import Json
from ..rope import Rope
from .base import BuiltIn, Frequencies, Varying, above, at_least, divided, register


@register("longrope")
@dataclass(frozen=True)
class LongRope(BuiltIn):
    """LongRoPE: every pair has its own divisor, from one list up to the trained length and from another beyond it.

    ``inv_i = b_i / lambda_i`` (the paper's rescale factors; LongRoPE2's lists are written the same way). Pairs with
    factor 1 keep their frequency. At every length, cos and sin are multiplied by ``attention_factor`` if set, else
    by ``sqrt(1 + ln s / ln L)``. The schedule is length-dependent if the two lists differ, with the switch at the first
    token past the trained length.

    Attributes:
        short_factor: divisors for a context up to the trained length, one per pair.
        long_factor: divisors for a longer context, one per pair.
        factor: the extension factor ``s``, only for the attention scale. Default: max length / trained length.
        attention_factor: replaces ``sqrt(1 + ln s / ln L)``.
    """

    does = "a factor per pair, in two lists"
    paper = "Ding et al. 2024, arXiv:2402.13753"
    length_dependent: ClassVar[Any] = Varying(lambda self: tuple(self.short_factor) != tuple(self.long_factor))

    short_factor: tuple[float, ...] = above(0)
    long_factor: tuple[float, ...] = above(0)
    factor: float | None = at_least(1, None)
    attention_factor: float | None = above(0, None)

    def __call__(self, rope: Rope, length: int) -> Frequencies:
        tables = {name: divided(self.name, name, rope, getattr(self, name)) for name in ("short_factor", "long_factor")}
        chosen = "long_factor" if length > rope.original_length else "short_factor"
        return Frequencies(tables[chosen], self.attention_scale(rope) * rope.table_scale)

    def attention_scale(self, rope: Rope) -> float:
        """Returns ``attention_factor`` if set, else ``sqrt(1 + ln s / ln L)``, which is 1 for factor 1."""
        if self.attention_factor is not None:
            return self.attention_factor
        return usual_scale(self._stretched(rope), rope.original_length)

    def _stretched(self, rope: Rope) -> float:
        return self.factor if self.factor is not None else rope.max_length / rope.original_length

    def rope_parameters(self, rope: Rope) -> Json | None:
        if not rope.is_plain:
            return None
        return {
            "rope_type": "longrope",
            "factor": float(self._stretched(rope)),
            "original_max_position_embeddings": rope.original_length,
            "attention_factor": float(self.attention_scale(rope)),
            "short_factor": [float(x) for x in self.short_factor],
            "long_factor": [float(x) for x in self.long_factor],
        }


def usual_scale(stretched: float, trained: int) -> float:
    """Returns ``sqrt(1 + ln s / ln L)``, or 1 if the factor is at most 1."""
    return math.sqrt(1 + math.log(stretched) / math.log(trained)) if stretched > 1 else 1.0
