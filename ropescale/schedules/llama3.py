"""Llama 3.1's scaling: Grattafiori et al. 2024, "The Llama 3 Herd of Models", arXiv:2407.21783 (code:
meta-llama/llama-models, models/llama3/model.py, apply_scaling)."""

from dataclasses import dataclass

from ..files import Json
from ..rope import Rope
from .base import BuiltIn, Frequencies, above, at_least, register
from .by_parts import blend_by_turns, llama3_form


@register("llama3")
@dataclass(frozen=True)
class Llama3(BuiltIn):
    """Llama 3.1's scaling: fast pairs keep their frequency, slow ones are divided, those between are blended.

    A pair that makes more than ``high_freq_factor`` turns inside the trained length is kept, and a pair that makes
    fewer than ``low_freq_factor`` is divided by the factor. In between, the blend is linear in turns, as in
    NTK-by-parts with a narrower band. cos and sin are not rescaled. Equal ends make a step (Llama 4: factor 16, both
    ends 1).

    Attributes:
        factor: the extension factor ``s``; 1 or more (Llama 3.1: 8, Llama 3.2: 32).
        low_freq_factor: turns below which a pair is divided.
        high_freq_factor: turns above which a pair is kept; not below ``low_freq_factor``.
    """

    does = "ntk-by-parts with a narrower band"
    paper = "Grattafiori et al. 2024, arXiv:2407.21783"
    falling = ("high_freq_factor", "low_freq_factor")

    factor: float = at_least(1)
    low_freq_factor: float = above(0, 1.0)
    high_freq_factor: float = above(0, 4.0)

    def __call__(self, rope: Rope, length: int) -> Frequencies:
        blended = blend_by_turns(rope, self.factor, self.low_freq_factor, self.high_freq_factor)
        return Frequencies(blended, rope.table_scale)

    def rope_parameters(self, rope: Rope) -> Json | None:
        return llama3_form(rope, self.factor, self.low_freq_factor, self.high_freq_factor)
