"""NTK-RoPE-mixed: Su Jianlin 2023, https://kexue.fm/archives/9706 (code: bojone/rerope, ntk_patch.py)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from ..rope import Rope
from .base import BuiltIn, Frequencies, at_least, register


@register("ntk-mixed")
@dataclass(frozen=True)
class NtkMixed(BuiltIn):
    """Su's mixed NTK-RoPE: pair ``i`` is multiplied by ``exp(-a (i+1)^b)`` with ``a = ln s / (d/2)^b``.

    Every pair slows down, the last by exactly the factor. ``b = 1`` is ``ntk-su`` and ``b = 0`` is ``linear``.
    cos and sin are not rescaled. (vLLM's rope type ``ntk`` with ``mixed_b``.)

    Attributes:
        factor: the divisor of the slowest pair, ``s`` (the article's ``k``); 1 or more.
        b: the exponent, which delays the slowdown; 0 or more.
    """

    does: ClassVar[str] = "between linear and ntk-su"
    paper: ClassVar[str] = "Su 2023, https://kexue.fm/archives/9706"

    factor: float = at_least(1)
    b: float = at_least(0, 0.75)

    def __call__(self, rope: Rope, length: int) -> Frequencies:
        a = math.log(self.factor) / (rope.rotary_dim / 2) ** self.b
        slowed = [f * math.exp(-a * (i + 1) ** self.b) for i, f in enumerate(rope.inv_freq())]
        return Frequencies(slowed, rope.table_scale)
