"""CoPE: Li et al. 2026, "CoPE: Clipped RoPE as A Scalable Free Lunch for Long Context LLMs", arXiv:2602.05258."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from ..errors import ScheduleError
from ..rope import Rope
from .base import BuiltIn, Frequencies, at_least, register


@register("cope")
@dataclass(frozen=True)
class Cope(BuiltIn):
    """Clipped RoPE: slow pairs fade out along half a cosine; fast pairs keep their frequency.

    ``inv_i = b_i (1 + cos(pi k / (n - 1))) / 2`` for the ``n`` slowest pairs, ``k`` from 0 to ``n - 1``: the first of
    them keeps its frequency, the last stops. cos and sin are not rescaled. It has no factor, and is intended as a start
    for training at the longer length.

    Attributes:
        clipped_pairs: ``n``. Default: the number of pairs that make less than one turn inside the trained length. (The
            released code fixes 20 of Llama 3's 64 pairs as ``clip_low_n``.)
    """

    does: ClassVar[str] = "the slowest pairs fade out"
    paper: ClassVar[str] = "Li et al. 2026, arXiv:2602.05258"

    clipped_pairs: int | None = at_least(2, None)

    def __call__(self, rope: Rope, length: int) -> Frequencies:
        inv_freq, clipped = rope.inv_freq(), self.clipped_pairs
        if clipped is None:
            clipped = sum(0 < turns < 1 for turns in rope.turns())
            if clipped < 2:  # the first one keeps its frequency, so a single pair changes nothing
                raise ScheduleError(
                    "cope fades out pairs that make less than one turn within the trained length of "
                    f"{rope.original_length} tokens, and this model has {clipped}; give clipped_pairs"
                )
        turning = sum(f > 0 for f in inv_freq)
        n = min(clipped, turning)
        first = turning - n
        faded = [b * (1 + math.cos(math.pi * (k / (n - 1)))) / 2 for k, b in enumerate(inv_freq[first:turning])]
        return Frequencies(inv_freq[:first] + faded + inv_freq[turning:], rope.table_scale)
