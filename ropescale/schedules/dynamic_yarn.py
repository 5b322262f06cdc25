"""Dynamic YaRN: Peng et al. 2023, arXiv:2309.00071, section 3.3 (code: jquesnelle/yarn, scaled_rope)."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar

from ..rope import Rope
from .base import BuiltIn, Frequencies, above, at_least, register
from .yarn import Yarn


@register("dynamic-yarn")
@dataclass(frozen=True)
class DynamicYarn(BuiltIn):
    """YaRN whose factor follows the context: ``s = n / L`` once the context ``n`` is longer than the trained ``L``.

    Up to the trained length it is plain RoPE, without an attention scale; beyond it, YaRN's ramp applies to the pairs,
    and ``0.1 ln s + 1`` to cos and sin. (The released scaled_rope form; the class of the same name in that project's
    modeling files divides by ``max_position_embeddings`` instead.)

    Attributes:
        beta_fast: as in ``yarn``.
        beta_slow: as in ``yarn``.
        truncate: as in ``yarn``.
        attention_factor: as in ``yarn``, beyond the trained length.
        mscale: as in ``yarn``.
        mscale_all_dim: as in ``yarn``.
        extrapolation_factor: as in ``yarn``.
    """

    does: ClassVar[str] = "yarn that follows the length"
    paper: ClassVar[str] = "Peng et al. 2023, arXiv:2309.00071, section 3.3"
    length_dependent: ClassVar[bool] = True
    falling: ClassVar[tuple[str, ...]] = ("beta_fast", "beta_slow")

    beta_fast: float = above(0, 32.0)
    beta_slow: float = above(0, 1.0)
    truncate: bool = True
    attention_factor: float | None = above(0, None)
    mscale: float | None = None
    mscale_all_dim: float | None = None
    extrapolation_factor: float = at_least(0, 1.0)

    def __call__(self, rope: Rope, length: int) -> Frequencies:
        if length <= rope.original_length:
            return Frequencies(rope.inv_freq(), rope.table_scale)
        return self.at(length / rope.original_length)(rope, length)

    def at(self, factor: float) -> Yarn:
        """Returns the static YaRN for a context of ``factor`` times the trained length."""
        return Yarn(factor=factor, **{field.name: getattr(self, field.name) for field in fields(self)})
