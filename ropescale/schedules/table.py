"""Tables of numbers: frequencies or divisors per pair, as in LongRoPE (Ding et al. 2024, arXiv:2402.13753)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import ScheduleError
from ..rope import Rope
from .base import BuiltIn, Frequencies, above, at_least, divided, one_per_pair, register

NEVER_TURNS = 1e30
"""The divisor for a pair that does not turn: JSON has no infinity, and engines accept this number."""


def divisors(inv_freq: Sequence[float], rope: Rope) -> list[float]:
    """Returns the divisors that turn theta's own series, ``theta^(-2i/d)``, into these frequencies."""
    plain = [rope.theta ** (-2 * i / rope.rotary_dim) for i in range(rope.pairs)]
    return [b / f if f else NEVER_TURNS for b, f in zip(plain, inv_freq)]


@register("table")
@dataclass(frozen=True)
class Table(BuiltIn):
    """A table of numbers, one per pair: a search's result, or the saved form of a custom schedule.

    The numbers are either ``inv_freq``, which are used directly, or ``factors``, which divide the model's own
    frequencies (1 keeps a pair, 1e30 stops it). cos and sin are multiplied by ``attention_factor`` (default: 1).

    Attributes:
        inv_freq: radians per token, one per pair, 0 or more.
        factors: divisors, one per pair, above 0.
        attention_factor: multiplies cos and sin.
    """

    does = "your own number for every pair"
    paper = "Ding et al. 2024, arXiv:2402.13753 (its rescale factors, one list for every length)"

    inv_freq: tuple[float, ...] | None = at_least(0, None)
    factors: tuple[float, ...] | None = above(0, None)
    attention_factor: float | None = above(0, None)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.inv_freq is None) == (self.factors is None):
            raise ScheduleError("table needs either inv_freq or factors, one number per pair, and not both")

    def __call__(self, rope: Rope, length: int) -> Frequencies:
        scale = (self.attention_factor or 1.0) * rope.table_scale
        if self.factors is not None:
            return Frequencies(divided(self.name, "factors", rope, self.factors), scale)
        return Frequencies(one_per_pair(self.name, "inv_freq", rope, self.inv_freq or ()), scale)

    @classmethod
    def of(cls, frequencies: Frequencies, rope: Rope) -> Table:
        """Returns the table with these frequencies on ``rope``: factors ``b_i / inv_i`` (1e30 for a stopped pair)."""
        factors = []
        for b, f in zip(rope.inv_freq(), one_per_pair(cls.name, "inv_freq", rope, frequencies.inv_freq)):
            divisor = b / f if f else NEVER_TURNS
            factors.append(divisor if b else 1.0)
        return cls(factors=tuple(factors), attention_factor=frequencies.attention_scale / rope.table_scale)
