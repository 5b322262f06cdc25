"""Schedules by parts: fast pairs keep their frequency, slow ones are divided, those between are blended.

* ``ntk-by-parts``: bloc97 2023, jquesnelle/yarn pull request 1; Peng et al. 2023, arXiv:2309.00071, section 3.2.
* ``yarn``: Peng et al. 2023, "YaRN: Efficient Context Window Extension of Large Language Models", arXiv:2309.00071.
* ``dynamic-yarn``: the same paper, section 3.3 (code: jquesnelle/yarn, scaled_rope).
"""

import math
from dataclasses import dataclass, field

from ..files import Json, present
from ..rope import Rope
from .base import BuiltIn, Frequencies, above, at_least, register
from .fields import parameters


@register("ntk-by-parts")
@dataclass(frozen=True)
class NtkByParts(BuiltIn):
    """NTK-by-parts as the paper defines it: fast pairs keep their frequency, slow ones are divided.

    ``inv_i = (1 - g_i) b_i / s + g_i b_i`` (definition 2) where ``g_i`` rises from 0 to 1, linearly in the pair's
    *turns* inside the trained length, between ``beta_slow`` and ``beta_fast`` (the paper's alpha and beta). YaRN's
    released code is linear in the pair *index* instead: that is ``yarn``. The released class called "part NTK" is a
    different schedule, with a third, NTK-scaled table. cos and sin are not rescaled. Transformers' ``llama3`` is the
    same formula with different names for the two ends, so the schedule is saved in that form.

    Attributes:
        factor: the extension factor ``s``; 1 or more.
        beta_fast: pairs with more turns than this keep their frequency.
        beta_slow: pairs with fewer turns than this are divided by the factor.
    """

    does = "fast pairs kept, slow ones divided"
    paper = "Peng et al. 2023, arXiv:2309.00071, definition 2"
    falling = ("beta_fast", "beta_slow")

    factor: float = at_least(1)
    beta_fast: float = above(0, 32.0)
    beta_slow: float = above(0, 1.0)

    def __call__(self, rope: Rope, length: int) -> Frequencies:
        return Frequencies(blend_by_turns(rope, self.factor, self.beta_slow, self.beta_fast), rope.table_scale)

    def rope_parameters(self, rope: Rope) -> Json | None:
        return llama3_form(rope, self.factor, self.beta_slow, self.beta_fast)


def blend_by_turns(rope: Rope, factor: float, low: float, high: float) -> list[float]:
    """Returns the frequencies: divided below ``low`` turns, kept above ``high`` turns, and blended linearly in between.

    If ``low == high``, the blend is a step.
    """
    if factor == 1:
        return rope.inv_freq()
    blended = []
    for b, turns in zip(rope.inv_freq(), rope.turns()):
        if turns > high or turns < low or low == high:
            blended.append(b if turns > high else b / factor)
        else:
            kept = (turns - low) / (high - low)
            blended.append((1 - kept) * b / factor + kept * b)
    return blended


def llama3_form(rope: Rope, factor: float, low: float, high: float) -> Json | None:
    """Returns the blend as transformers' ``llama3`` parameters, or None if a pair does not follow theta's series."""
    if not rope.is_plain:
        return None
    return {
        "rope_type": "llama3",
        "factor": float(factor),
        "original_max_position_embeddings": rope.original_length,
        "low_freq_factor": float(low),
        "high_freq_factor": float(high),
    }


@register("yarn")
@dataclass(frozen=True)
class Yarn(BuiltIn):
    """YaRN as every implementation computes it: fast pairs keep their frequency, slow ones are divided.

    ``inv_i = b_i (m_i + (1 - m_i) / s)`` with ``m_i`` falling from 1 to 0, linearly in the pair *index*, between
    the pairs that make ``beta_fast`` and ``beta_slow`` turns inside the trained length. (The paper's equation 13
    is linear in turns instead; that form is ``ntk-by-parts``.) cos and sin are multiplied by
    ``0.1 ln s + 1`` (equation 15's ``sqrt(1/t)``).

    Attributes:
        factor: the extension factor ``s``; 1 or more.
        beta_fast: pairs with more turns than this keep their frequency.
        beta_slow: pairs with fewer turns than this are divided by the factor.
        truncate: round the ramp's ends outwards to whole pairs (as all code except gpt-oss's does).
        attention_factor: replaces ``0.1 ln s + 1``.
        mscale: DeepSeek's numerator, ``0.1 mscale ln s + 1``; used only together with ``mscale_all_dim``.
        mscale_all_dim: DeepSeek's denominator.
        extrapolation_factor: multiplies ``m_i``; 1 is YaRN, 0 divides every pair.
    """

    does = "ntk-by-parts, rescaled attention"
    paper = "Peng et al. 2023, arXiv:2309.00071"
    falling = ("beta_fast", "beta_slow")

    factor: float = at_least(1)
    beta_fast: float = above(0, 32.0)
    beta_slow: float = above(0, 1.0)
    truncate: bool = True
    attention_factor: float | None = above(0, None)
    mscale: float | None = None
    mscale_all_dim: float | None = None
    extrapolation_factor: float = at_least(0, 1.0)

    def __call__(self, rope: Rope, length: int) -> Frequencies:
        inv_freq = rope.inv_freq()
        if self.factor != 1:
            kept = [m * self.extrapolation_factor for m in ramp(rope, self.beta_fast, self.beta_slow, self.truncate)]
            inv_freq = [b / self.factor * (1 - m) + b * m for b, m in zip(inv_freq, kept)]
        return Frequencies(inv_freq, self.attention_scale() * rope.table_scale)

    def attention_scale(self) -> float:
        """Returns ``attention_factor`` if set, else DeepSeek's ratio if both mscales are set, else ``0.1 ln s + 1``."""
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return temperature(self.factor, self.mscale) / temperature(self.factor, self.mscale_all_dim)
        return temperature(self.factor)

    def rope_parameters(self, rope: Rope) -> Json | None:
        nested_truncate_is_ignored = rope.layer_type is not None and not self.truncate
        if self.extrapolation_factor != 1 or nested_truncate_is_ignored or not rope.is_plain:
            return None
        if self.factor == 1 and self.attention_scale() == 1:
            return {"rope_type": "default"}
        optional = {"mscale": self.mscale, "mscale_all_dim": self.mscale_all_dim}
        if self.attention_factor is not None or not (self.mscale and self.mscale_all_dim):
            optional["attention_factor"] = float(self.attention_scale())
        return {
            "rope_type": "yarn",
            "factor": float(self.factor),
            "original_max_position_embeddings": rope.original_length,
            "beta_fast": float(self.beta_fast),
            "beta_slow": float(self.beta_slow),
            "truncate": self.truncate,
        } | present(optional)


def temperature(factor: float, mscale: float = 1.0) -> float:
    """Returns ``0.1 mscale ln s + 1``, or 1 if the factor is at most 1 (equation 15 and DeepSeek's mscale)."""
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def ramp(rope: Rope, beta_fast: float, beta_slow: float, truncate: bool) -> list[float]:
    """Returns ``m_i``, the weight of pair i's own frequency: 1 for fast pairs, 0 for slow ones.

    The weight is linear in the pair index between the pairs that make ``beta_fast`` and ``beta_slow`` turns. As in
    transformers, every pair keeps its frequency if both ends of the ramp are below pair 0 (the trained length is
    shorter than ``2 pi beta_slow``).
    """
    low, high = ramp_ends(rope, beta_fast, beta_slow, truncate)
    if low == high:
        high += 0.001
    return [1 - min(max((i - low) / (high - low), 0.0), 1.0) for i in range(rope.pairs)]


def ramp_ends(rope: Rope, beta_fast: float, beta_slow: float, truncate: bool) -> tuple[float, float]:
    """Returns the pairs between which the ramp falls, within 0 and rotary dim - 1."""
    low = rope.pair_at(beta_fast)
    high = rope.pair_at(beta_slow)
    if truncate:
        low = math.floor(low)
        high = math.ceil(high)
    return max(low, 0), min(high, rope.rotary_dim - 1)


@register("dynamic-yarn")
@dataclass(frozen=True)
class DynamicYarn(Yarn):
    """YaRN whose factor follows the context: ``s = n / L`` if the context ``n`` exceeds the trained length ``L``.

    Up to the trained length the schedule is plain RoPE, without an attention scale. In a longer context, YaRN's ramp
    applies to the pairs, and ``0.1 ln s + 1`` to cos and sin. (This is the form in the released scaled_rope; the class
    of the same name in that project's modeling files divides by ``max_position_embeddings`` instead.)

    Attributes:
        beta_fast: as in ``yarn``.
        beta_slow: as in ``yarn``.
        truncate: as in ``yarn``.
        attention_factor: as in ``yarn``, beyond the trained length.
        mscale: as in ``yarn``.
        mscale_all_dim: as in ``yarn``.
        extrapolation_factor: as in ``yarn``.
    """

    does = "yarn with a growing factor"
    paper = "Peng et al. 2023, arXiv:2309.00071, section 3.3"
    length_dependent = True

    factor: float = field(default=1.0, init=False, repr=False)  # follows the context

    def __call__(self, rope: Rope, length: int) -> Frequencies:
        if length <= rope.original_length:
            return Frequencies(rope.inv_freq(), rope.table_scale)
        return self.at(length / rope.original_length)(rope, length)

    def at(self, factor: float) -> Yarn:
        """Returns the static YaRN for a context of ``factor`` times the trained length."""
        return Yarn(factor=factor, **{name: getattr(self, name) for name in parameters(self)})

    def rope_parameters(self, rope: Rope) -> Json | None:
        return None
