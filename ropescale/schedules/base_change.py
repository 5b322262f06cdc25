"""NTK-aware scaling and its relatives: schedules that change theta, or act like a larger one.

* ``ntk``: bloc97 2023, "NTK-Aware Scaled RoPE allows LLaMA models to have extended (8k+) context size",
  https://www.reddit.com/r/LocalLLaMA/comments/14lz7j5/; written up in Peng et al. 2023, arXiv:2309.00071, section 3.1.
* ``ntk-su`` and ``ntk-mixed``: Su Jianlin 2023, https://kexue.fm/archives/9706 (code: bojone/rerope, ntk_patch.py).
* ``ntk-critical``: Shang et al. 2025, "LongRoPE2: Near-Lossless LLM Context Window Scaling", arXiv:2502.20082, section
  2; the rule for theta is Liu et al. 2023, arXiv:2310.05209, theorem 1.
* ``abf``: Xiong et al. 2023, "Effective Long-Context Scaling of Foundation Models", arXiv:2309.16039.
* ``dynamic``: emozilla 2023, "Dynamically Scaled RoPE further increases performance of long context LLaMA with zero
  fine-tuning", https://www.reddit.com/r/LocalLLaMA/comments/14mrgpr/; Peng et al. 2023, arXiv:2309.00071, section 3.3.
"""

import math
from dataclasses import dataclass

from ..errors import ScheduleError
from ..files import Json
from ..rope import Rope
from .base import BuiltIn, Frequencies, OtherTheta, above, at_least, register, with_theta


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

    does = "a larger theta slows slow pairs"
    paper = "bloc97 2023 (r/LocalLLaMA 14lz7j5); Peng et al. 2023, arXiv:2309.00071, definition 1"

    factor: float = at_least(1)

    def theta(self, rope: Rope) -> float | None:
        return None if self.factor == 1 else ntk_theta(self.name, rope, self.factor)


def ntk_theta(schedule: str, rope: Rope, alpha: float) -> float:
    """Returns ``theta alpha^(d/(d-2))``, the base that divides the last pair by ``alpha`` and keeps pair 0.

    Raises:
        ScheduleError: the rotary dim is 2 or less, so the first pair is also the last.
    """
    if rope.rotary_dim <= 2:
        raise ScheduleError(
            f"{schedule} needs a rotary dim above 2, and this model's is {rope.rotary_dim}: the exponent d / (d - 2) "
            "has no value; use linear"
        )
    return rope.theta * alpha ** (rope.rotary_dim / (rope.rotary_dim - 2))


@register("ntk-su")
@dataclass(frozen=True)
class NtkSu(BuiltIn):
    """Su's fixed NTK-RoPE: pair ``i`` is divided by ``s^(2(i+1)/d)``; no pair keeps its frequency.

    Pair 0 slows down by ``s^(2/d)``, the last pair by exactly the factor. cos and sin are not rescaled.
    (vLLM's rope type ``ntk`` without ``mixed_b``.)

    Attributes:
        factor: the divisor of the slowest pair, ``s`` (the article's ``k``); 1 or more.
    """

    does = "like ntk, but also slows pair 0"
    paper = "Su 2023, https://kexue.fm/archives/9706"

    factor: float = at_least(1)

    def __call__(self, rope: Rope, length: int) -> Frequencies:
        divided = [b * self.factor ** (-2 * (i + 1) / rope.rotary_dim) for i, b in enumerate(rope.inv_freq())]
        return Frequencies(divided, rope.table_scale)


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

    does = "between linear and ntk-su"
    paper = "Su 2023, https://kexue.fm/archives/9706"

    factor: float = at_least(1)
    b: float = at_least(0, 0.75)

    def __call__(self, rope: Rope, length: int) -> Frequencies:
        a = math.log(self.factor) / (rope.rotary_dim / 2) ** self.b
        slowed = [f * math.exp(-a * (i + 1) ** self.b) for i, f in enumerate(rope.inv_freq())]
        return Frequencies(slowed, rope.table_scale)


@register("ntk-critical")
@dataclass(frozen=True)
class NtkCritical(OtherTheta):
    """NTK-aware scaling that divides the critical pair by the factor, and slower pairs by more.

    The critical pair makes exactly one turn in training, mostly at a fraction (the paper rounds it up): training did
    not cover every angle of slower pairs. ``theta' = theta s^(d / 2c)`` divides pair ``c`` by ``s``. With the formula's
    ``c = (d / 2) log_theta(L / 2 pi)``, ``theta'`` is ``theta^(ln(s L / 2 pi) / ln(L / 2 pi))``. Pair 0 keeps its
    frequency; cos and sin are not rescaled.

    Attributes:
        factor: the divisor of the critical pair, ``s``; 1 or more.
        critical_pair: ``c``, counted from 0. Default: the formula's fractional value.
    """

    does = "like ntk, set by the critical pair"
    paper = "Shang et al. 2025, arXiv:2502.20082, section 2"

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
                f"{rope.original_length:,} tokens even the fastest makes less; give critical_pair"
            )
        try:
            return rope.theta * self.factor ** (rope.rotary_dim / (2 * critical))
        except OverflowError:
            raise ScheduleError(
                f"ntk-critical would need an infinite theta for factor {self.factor:g} at pair {critical:g}; "
                "give a larger critical_pair or a smaller factor"
            ) from None


@register("abf")
@dataclass(frozen=True)
class Abf(OtherTheta):
    """Adjusted base frequency: only theta changes, ``theta'^(-2i/d)`` (section 2 of the paper; Code Llama uses 1e6).

    Pair 0 keeps its frequency; a larger theta slows the slow pairs most. cos and sin are not rescaled. Intended for
    training; ``ntk`` derives theta from a factor without training.

    Attributes:
        rope_theta: the new base, above 1.
    """

    does = "a different theta"
    paper = "Xiong et al. 2023, arXiv:2309.16039"

    rope_theta: float = above(1)

    def theta(self, rope: Rope) -> float:
        return self.rope_theta


@register("dynamic")
@dataclass(frozen=True)
class Dynamic(BuiltIn):
    """NTK-aware scaling whose base follows the context: ``theta' = theta (s n/L - (s - 1))^(d/(d-2))``.

    The schedule is plain RoPE while the context ``n`` is no longer than the trained length ``L``. In a longer context,
    pair 0 keeps its frequency and the last pair is divided by ``s n/L - (s - 1)``. cos and sin are not rescaled. With
    factor 1 the divisor is ``n/L``, so the schedule equals ``base`` only up to the trained length. transformers uses
    ``max_position_embeddings`` as ``L``.

    Attributes:
        factor: the slope of the divisor against ``n/L``, ``s``; 1 or more.
    """

    does = "ntk with a growing factor"
    paper = "emozilla 2023 (r/LocalLLaMA 14mrgpr); Peng et al. 2023, arXiv:2309.00071, section 3.3"
    length_dependent = True

    factor: float = at_least(1)

    def __call__(self, rope: Rope, length: int) -> Frequencies:
        alpha = self.factor * length / rope.original_length - (self.factor - 1)
        if length <= rope.original_length:
            return Frequencies(rope.inv_freq(), rope.table_scale)
        return Frequencies(with_theta(rope, ntk_theta(self.name, rope, alpha)), rope.table_scale)

    def rope_parameters(self, rope: Rope) -> Json | None:
        if not rope.is_plain:
            return None
        return {"rope_type": "dynamic", "factor": float(self.factor)}
