"""NTK scaling from a critical pair: Shang et al. 2025, "LongRoPE2: Near-Lossless LLM Context Window Scaling",
arXiv:2502.20082, section 2; the rule for theta is Liu et al. 2023, arXiv:2310.05209, theorem 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..errors import ScheduleError
from ..rope import Rope
from .base import OtherTheta, above, at_least, register


@register("ntk-critical")
@dataclass(frozen=True)
class NtkCritical(OtherTheta):
    """NTK-aware scaling that divides the critical pair by the factor, and slower pairs by more.

    The critical pair is the slowest one that makes a full turn in training: training did not cover every angle of
    slower pairs. ``theta' = theta s^(d / 2c)`` divides pair ``c`` by ``s``. With the formula's ``c = (d / 2)
    log_theta(L / 2 pi)`` that is ``theta^(ln(s L / 2 pi) / ln(L / 2 pi))``. Pair 0 keeps its frequency; cos and sin are
    not rescaled.

    Attributes:
        factor: the divisor of the critical pair, ``s``; 1 or more.
        critical_pair: ``c``, counted from 0. Default: the formula's fractional value.
    """

    does: ClassVar[str] = "ntk from the last full-turn pair"
    paper: ClassVar[str] = "Shang et al. 2025, arXiv:2502.20082, section 2"

    factor: float = at_least(1)
    critical_pair: float | None = above(0, None)

    def theta(self, rope: Rope) -> float | None:
        """Returns the theta that divides the critical pair by the factor; None for factor 1.

        Raises:
            ScheduleError: no pair completes a turn inside the trained length, or theta would be too large.
        """
        if self.factor == 1:
            return None
        critical = rope.pair_at(1.0) if self.critical_pair is None else self.critical_pair
        if critical <= 0:
            raise ScheduleError(
                "ntk-critical needs a pair that makes a full turn within the trained length, but at "
                f"{rope.original_length} tokens even the fastest makes less; give critical_pair"
            )
        try:
            return rope.theta * self.factor ** (rope.rotary_dim / (2 * critical))
        except OverflowError:
            raise ScheduleError(
                f"ntk-critical would need an infinite theta for factor {self.factor:g} at pair {critical:g}; "
                "give a larger critical_pair or a smaller factor"
            ) from None
