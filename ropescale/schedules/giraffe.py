"""Giraffe: Pal et al. 2023, "Giraffe: Adventures in Expanding Context Lengths in LLMs", arXiv:2308.10882."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from ..errors import ScheduleError
from ..rope import Rope
from .base import BuiltIn, Frequencies, at_least, register


@register("giraffe")
@dataclass(frozen=True)
class Giraffe(BuiltIn):
    """Giraffe's power scaling and truncated basis; give one of the two, or both (power first, as in its code).

    Power: ``b_i (1 - i/(d/2))^p``: fast pairs nearly keep their frequency, and slower pairs slow down more. Truncation,
    with the cutoff ``c = 2 pi / T``: pairs of ``c`` or more are kept, those below ``c / 8`` stop, and all between
    become ``c / 16`` (the constants of the released code, abacusai/Long-Context). cos and sin are not rescaled. The
    linear scaling that precedes it in that code is ``linear``, with this schedule on top.

    Attributes:
        scale_power: the exponent ``p``, 0 or more.
        truncate: the length ``T`` in tokens that a kept pair's wavelength fits into.
    """

    does: ClassVar[str] = "slow pairs slowed more, or cut off"
    paper: ClassVar[str] = "Pal et al. 2023, arXiv:2308.10882"

    scale_power: float | None = at_least(0, None)
    truncate: int | None = at_least(1, None)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scale_power is None and self.truncate is None:
            raise ScheduleError("giraffe needs scale_power, truncate, or both; give it as giraffe:scale_power=0.5")

    def __call__(self, rope: Rope, length: int) -> Frequencies:
        inv_freq, half = rope.inv_freq(), rope.rotary_dim / 2
        if self.scale_power is not None:
            inv_freq = [b * (1 - i / half) ** self.scale_power for i, b in enumerate(inv_freq)]
        if self.truncate is not None:
            cutoff = 2 * math.pi / self.truncate
            inv_freq = [b if b >= cutoff else cutoff / 16 if b >= cutoff / 8 else 0.0 for b in inv_freq]
        return Frequencies(inv_freq, rope.table_scale)
