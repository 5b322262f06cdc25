"""RoPE without scaling, and position interpolation.

* ``base``: Su et al. 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding", arXiv:2104.09864.
* ``linear``: Chen et al. 2023, "Extending Context Window of Large Language Models via Positional Interpolation",
  arXiv:2306.15595; proposed independently by kaiokendev (https://kaiokendev.github.io/til).
"""

from dataclasses import dataclass

from ..files import Json
from ..rope import Rope
from .base import BuiltIn, Frequencies, OtherTheta, at_least, plain_form, register


@register("base")
@dataclass(frozen=True)
class Base(OtherTheta):
    """RoPE without scaling: every pair keeps its frequency, ``b_i = theta^(-2i/d)``; cos and sin are not rescaled.

    See section 3.2.2 of the paper. On top of existing scaling, this schedule changes nothing.
    """

    does = "plain RoPE, no scaling"
    paper = "Su et al. 2021, arXiv:2104.09864"


@register("linear")
@dataclass(frozen=True)
class Linear(BuiltIn):
    """Position interpolation: the frequency of every pair is divided by the factor, ``b_i / s``.

    Equivalent to dividing positions by ``s`` (equation 4 of the paper). cos and sin are not rescaled.

    Attributes:
        factor: the extension factor ``s``; 1 or more.
    """

    does = "slows every pair by the factor"
    paper = "Chen et al. 2023, arXiv:2306.15595"

    factor: float = at_least(1)

    def __call__(self, rope: Rope, length: int) -> Frequencies:
        return Frequencies([b / self.factor for b in rope.inv_freq()], rope.table_scale)

    def rope_parameters(self, rope: Rope) -> Json | None:
        return plain_form(rope, factor=self.factor)
