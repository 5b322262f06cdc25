"""Dynamic NTK scaling: emozilla 2023, "Dynamically Scaled RoPE further increases performance of long context LLaMA
with zero fine-tuning", https://www.reddit.com/r/LocalLLaMA/comments/14mrgpr/; Peng et al. 2023, arXiv:2309.00071,
section 3.3."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ..rope import Rope
from .base import BuiltIn, Frequencies, at_least, register, with_theta
from .ntk import ntk_theta


@register("dynamic")
@dataclass(frozen=True)
class Dynamic(BuiltIn):
    """NTK-aware scaling whose base follows the context: ``theta' = theta (s n/L - (s - 1))^(d/(d-2))``.

    Plain RoPE while the context ``n`` is no longer than the trained length ``L``; beyond it pair 0 keeps its frequency
    and the last pair is divided by ``s n/L - (s - 1)``. cos and sin are not rescaled. With factor 1 the divisor is
    ``n/L``, so the schedule equals ``base`` only up to the trained length. transformers uses
    ``max_position_embeddings`` as ``L``.

    Attributes:
        factor: the slope of the divisor in the context, ``s``; 1 or more.
    """

    does: ClassVar[str] = "ntk that follows the length"
    paper: ClassVar[str] = "emozilla 2023 (r/LocalLLaMA 14mrgpr); Peng et al. 2023, arXiv:2309.00071, section 3.3"
    length_dependent: ClassVar[bool] = True

    factor: float = at_least(1)

    def __call__(self, rope: Rope, length: int) -> Frequencies:
        alpha = self.factor * length / rope.original_length - (self.factor - 1)
        if length <= rope.original_length:
            return Frequencies(rope.inv_freq(), rope.table_scale)
        return Frequencies(with_theta(rope, ntk_theta(self.name, rope, alpha)), rope.table_scale)

    def rope_parameters(self, rope: Rope) -> Mapping[str, object] | None:
        if not rope.is_plain:
            return None
        return {"rope_type": "dynamic", "factor": float(self.factor)}
