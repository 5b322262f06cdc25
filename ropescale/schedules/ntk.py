"""NTK-aware scaling: bloc97 2023, "NTK-Aware Scaled RoPE allows LLaMA models to have extended (8k+) context size",
https://www.reddit.com/r/LocalLLaMA/comments/14lz7j5/; written up in Peng et al. 2023, arXiv:2309.00071, section 3.1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..errors import ScheduleError
from ..rope import Rope
from .base import OtherTheta, at_least, register


@register("ntk")
@dataclass(frozen=True)
class Ntk(OtherTheta):
    """NTK-aware scaling, the fixed change of base: ``theta' = theta s^(d/(d-2))``.

    Pair 0 keeps its frequency, the last pair is divided by exactly the factor, and the divisors between them grow
    geometrically (Peng et al., definition 1). cos and sin are not rescaled. Su Jianlin's form, which also slows pair 0,
    is ``ntk-su``; ``abf`` sets theta directly.

    Attributes:
        factor: the divisor of the slowest pair, the post's ``alpha``; 1 or more.
    """

    does: ClassVar[str] = "a larger theta: slow pairs slower"
    paper: ClassVar[str] = "bloc97 2023 (r/LocalLLaMA 14lz7j5); Peng et al. 2023, arXiv:2309.00071, definition 1"

    factor: float = at_least(1)

    def theta(self, rope: Rope) -> float | None:
        return None if self.factor == 1 else ntk_theta(self.name, rope, self.factor)


def ntk_theta(schedule: str, rope: Rope, alpha: float) -> float:
    """Returns ``theta alpha^(d/(d-2))``, the base that divides the last pair by ``alpha`` and leaves pair 0 alone.

    Raises:
        ScheduleError: the rotary dim is 2 or less: its only pair is both first and last.
    """
    if rope.rotary_dim <= 2:
        raise ScheduleError(
            f"{schedule} needs a rotary dim above 2, and this model's is {rope.rotary_dim}: the exponent d / (d - 2) "
            "has no value; use linear"
        )
    return rope.theta * alpha ** (rope.rotary_dim / (rope.rotary_dim - 2))
