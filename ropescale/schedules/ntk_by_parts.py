"""NTK-by-parts: bloc97 2023, jquesnelle/yarn pull request 1; Peng et al. 2023, arXiv:2309.00071, section 3.2."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ..rope import Rope
from .base import BuiltIn, Frequencies, above, at_least, register


@register("ntk-by-parts")
@dataclass(frozen=True)
class NtkByParts(BuiltIn):
    """NTK-by-parts as the paper defines it: fast pairs keep their frequency, slow ones are divided.

    ``inv_i = (1 - g_i) b_i / s + g_i b_i`` (definition 2) where ``g_i`` rises from 0 to 1, linearly in the pair's
    *turns* inside the trained length, between ``beta_slow`` and ``beta_fast`` (the paper's alpha and beta). YaRN's
    released code is linear in the pair *index* instead: that is ``yarn``. The released class called "part NTK" mixes in
    a third, NTK-scaled table and is not this. cos and sin are not rescaled. Transformers' ``llama3`` is the same
    formula with other names for the two ends, so it is saved in that form.

    Attributes:
        factor: the extension factor ``s``; 1 or more.
        beta_fast: pairs with more turns than this keep their frequency.
        beta_slow: pairs with fewer turns than this are divided by the factor.
    """

    does: ClassVar[str] = "fast pairs stay, slow ones divided"
    paper: ClassVar[str] = "Peng et al. 2023, arXiv:2309.00071, definition 2"
    falling: ClassVar[tuple[str, ...]] = ("beta_fast", "beta_slow")

    factor: float = at_least(1)
    beta_fast: float = above(0, 32.0)
    beta_slow: float = above(0, 1.0)

    def __call__(self, rope: Rope, length: int) -> Frequencies:
        return Frequencies(blend_by_turns(rope, self.factor, self.beta_slow, self.beta_fast), rope.table_scale)

    def rope_parameters(self, rope: Rope) -> Mapping[str, object] | None:
        return llama3_form(rope, self.factor, self.beta_slow, self.beta_fast)


def blend_by_turns(rope: Rope, factor: float, low: float, high: float) -> list[float]:
    """Divides pairs of fewer than ``low`` turns, keeps those of more than ``high``, blends linearly in turns between.

    With ``low == high`` the blend is a step.
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


def llama3_form(rope: Rope, factor: float, low: float, high: float) -> Mapping[str, object] | None:
    """Returns the blend in transformers' ``llama3`` keys; None if the base is not theta's series."""
    if not rope.is_plain:
        return None
    return {
        "rope_type": "llama3",
        "factor": float(factor),
        "original_max_position_embeddings": rope.original_length,
        "low_freq_factor": float(low),
        "high_freq_factor": float(high),
    }
