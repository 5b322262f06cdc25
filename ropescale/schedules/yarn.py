"""YaRN: Peng et al. 2023, "YaRN: Efficient Context Window Extension of Large Language Models", arXiv:2309.00071."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ..rope import Rope
from .base import BuiltIn, Frequencies, above, at_least, register


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
        truncate: round the ramp's ends outwards to whole pairs (all code but gpt-oss's).
        attention_factor: replaces ``0.1 ln s + 1``.
        mscale: DeepSeek's numerator, ``0.1 mscale ln s + 1``; only together with ``mscale_all_dim``.
        mscale_all_dim: DeepSeek's denominator.
        extrapolation_factor: multiplies ``m_i``; 1 is YaRN, 0 divides every pair.
    """

    does: ClassVar[str] = "by parts, and attention rescaled"
    paper: ClassVar[str] = "Peng et al. 2023, arXiv:2309.00071"
    falling: ClassVar[tuple[str, ...]] = ("beta_fast", "beta_slow")

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
        """Returns ``attention_factor``, else DeepSeek's ratio if both mscales are set, else ``0.1 ln s + 1``."""
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return temperature(self.factor, self.mscale) / temperature(self.factor, self.mscale_all_dim)
        return temperature(self.factor)

    def rope_parameters(self, rope: Rope) -> Mapping[str, object] | None:
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
        } | {key: value for key, value in optional.items() if value is not None}


def temperature(factor: float, mscale: float = 1.0) -> float:
    """Returns ``0.1 mscale ln s + 1``, and 1 for factor 1 (equation 15 and DeepSeek's mscale)."""
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def ramp(rope: Rope, beta_fast: float, beta_slow: float, truncate: bool) -> list[float]:
    """Returns ``m_i``, the weight of pair i's own frequency: 1 for fast pairs, 0 for slow ones.

    Linear in the pair index between the two betas' pairs. As in transformers, a range entirely below pair 0 (a trained
    length shorter than ``2 pi beta_slow``) keeps every pair.
    """
    low, high = rope.pair_at(beta_fast), rope.pair_at(beta_slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.rotary_dim - 1)
    if low == high:
        high += 0.001
    return [1 - min(max((i - low) / (high - low), 0.0), 1.0) for i in range(rope.pairs)]
