"""Resonance RoPE: Wang et al. 2024, "Resonance RoPE: Improving Context Length Generalization of Large Language
Models", arXiv:2403.00071."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from ..errors import ScheduleError
from ..rope import Rope
from .base import BuiltIn, Frequencies, Schedule, Varying, compute, length_dependent, register
from .specs import one, parse


@register("resonance")
@dataclass(frozen=True)
class Resonance(BuiltIn):
    """An inner schedule with every wavelength rounded to whole tokens, so that positions repeat exactly.

    ``inv_i = 2 pi / round(2 pi / inv_i)`` (the paper's algorithm; halves are rounded to even, as in its code,
    sheryc/resonance_rope). Pair 0 becomes ``2 pi / 6``; a pair that does not turn does not change. The attention scale
    of the inner schedule is kept.

    Attributes:
        over: the inner schedule, by name: ``resonance:over=yarn,factor=8``. All other fields belong to the inner
            schedule.
    """

    does = "rounds a schedule's wavelengths"
    paper = "Wang et al. 2024, arXiv:2403.00071"
    length_dependent: ClassVar[Any] = Varying(lambda self: length_dependent(self.over))

    over: Schedule

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "over", one(parse(self.over), "resonance: over").build())

    def __call__(self, rope: Rope, length: int) -> Frequencies:
        below = compute(self.over, rope, length)
        inv_freq = []
        for pair, f in enumerate(below.inv_freq):
            tokens = round(2 * math.pi / f) if f else 0
            if f and tokens == 0:
                raise ScheduleError(
                    f"resonance: pair {pair} turns by {f:g} radians per token; its wavelength rounds to 0 tokens"
                )
            inv_freq.append(2 * math.pi / tokens if f else 0.0)
        return Frequencies(inv_freq, below.attention_scale)

    def bound(self, rope: Rope) -> Self:
        return type(self)(self.over.bound(rope)) if isinstance(self.over, BuiltIn) else self
