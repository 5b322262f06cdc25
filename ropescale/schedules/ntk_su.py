"""NTK-RoPE in Su Jianlin's fixed form: https://kexue.fm/archives/9706 (2023)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..rope import Rope
from .base import BuiltIn, Frequencies, at_least, register


@register("ntk-su")
@dataclass(frozen=True)
class NtkSu(BuiltIn):
    """Su's fixed NTK-RoPE: pair ``i`` is divided by ``s^(2(i+1)/d)``; no pair keeps its frequency.

    Pair 0 slows down by ``s^(2/d)``, the last pair by exactly the factor. cos and sin are not rescaled.
    (vLLM's rope type ``ntk`` without ``mixed_b``.)

    Attributes:
        factor: the divisor of the slowest pair, ``s`` (the article's ``k``); 1 or more.
    """

    does: ClassVar[str] = "ntk that slows pair 0, too"
    paper: ClassVar[str] = "Su 2023, https://kexue.fm/archives/9706"

    factor: float = at_least(1)

    def __call__(self, rope: Rope, length: int) -> Frequencies:
        divided = [b * self.factor ** (-2 * (i + 1) / rope.rotary_dim) for i, b in enumerate(rope.inv_freq())]
        return Frequencies(divided, rope.table_scale)
