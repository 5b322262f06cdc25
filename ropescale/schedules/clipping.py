"""Schedules that stop or fade out the slowest pairs.

* ``proportional``: Barbero et al. 2024, "Round and Round We Go! What makes Rotary Positional Encodings useful?",
  arXiv:2410.06205; transformers' rope type ``proportional`` (Gemma 4, LFM3).
* ``giraffe``: Pal et al. 2023, "Giraffe: Adventures in Expanding Context Lengths in LLMs", arXiv:2308.10882.
* ``cope``: Li et al. 2026, "CoPE: Clipped RoPE as A Scalable Free Lunch for Long Context LLMs", arXiv:2602.05258.
"""

import math
from dataclasses import dataclass, replace

from ..errors import ScheduleError
from ..files import Json
from ..rope import Rope
from .base import BuiltIn, Frequencies, at_least, plain_form, register


@register("proportional")
@dataclass(frozen=True)
class Proportional(BuiltIn):
    """p-RoPE: only the fastest pairs turn, with frequencies divided by the factor.

    ``inv_i = theta^(-2i/h) / s`` for ``i < k = int(p h // 2)`` and 0 for slower pairs, with ``h`` the *head* dim
    (the paper's p-RoPE with fraction ``p``, as transformers computes it). cos and sin are not rescaled.

    Attributes:
        partial_rotary_factor: the share of pairs that turn, ``p``, from 0 (no position at all) to 1 (plain RoPE).
        factor: divides the pairs that turn, ``s``; 1 or more.
    """

    does = "only the fastest pairs turn"
    paper = "Barbero et al. 2024, arXiv:2410.06205"

    partial_rotary_factor: float = at_least(0)
    factor: float = at_least(1, 1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.partial_rotary_factor > 1:
            raise ScheduleError(
                f"proportional: partial_rotary_factor is a share from 0 to 1, not {self.partial_rotary_factor}"
            )

    def __call__(self, rope: Rope, length: int) -> Frequencies:
        if rope.rotary_dim != rope.head_dim:
            raise ScheduleError(
                f"proportional spreads its pairs over the whole head, and this model rotates {rope.rotary_dim} of "
                f"{rope.head_dim} coordinates; use a table"
            )
        turning = self.turning(rope)
        whole = replace(rope, rotated_pairs=None).inv_freq()
        return Frequencies([b / self.factor if i < turning else 0.0 for i, b in enumerate(whole)], rope.table_scale)

    def turning(self, rope: Rope) -> int:
        """Returns the number of pairs that turn, ``int(p h // 2)``."""
        return int(self.partial_rotary_factor * rope.head_dim // 2)

    def rope_parameters(self, rope: Rope) -> Json | None:
        scaling = {"partial_rotary_factor": self.partial_rotary_factor}
        return plain_form(replace(rope, rotated_pairs=self.turning(rope), scaling=scaling), factor=self.factor)


@register("giraffe")
@dataclass(frozen=True)
class Giraffe(BuiltIn):
    """Giraffe's power scaling and truncated basis; give one of the two, or both (power first, as in its code).

    Power: ``b_i (1 - i/(d/2))^p``: fast pairs nearly keep their frequency, and slower pairs slow down more. Truncation,
    with the cutoff ``c = 2 pi / T``: frequencies of ``c`` or more are kept, those below ``c / 8`` become 0, and those
    in between become ``c / 16`` (the constants of the released code, abacusai/Long-Context). cos and sin are not
    rescaled. That code scales linearly first: use ``linear``, and this schedule on top.

    Attributes:
        scale_power: the exponent ``p``, 0 or more.
        truncate: the length ``T`` in tokens that a kept pair's wavelength fits into.
    """

    does = "slows or stops the slower pairs"
    paper = "Pal et al. 2023, arXiv:2308.10882"

    scale_power: float | None = at_least(0, None)
    truncate: int | None = at_least(1, None)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scale_power is None and self.truncate is None:
            raise ScheduleError("giraffe needs scale_power, truncate, or both; give it as giraffe:scale_power=0.5")

    def __call__(self, rope: Rope, length: int) -> Frequencies:
        inv_freq = rope.inv_freq()
        half = rope.rotary_dim / 2
        if self.scale_power is not None:
            inv_freq = [b * (1 - i / half) ** self.scale_power for i, b in enumerate(inv_freq)]
        if self.truncate is not None:
            cutoff = 2 * math.pi / self.truncate
            for i, b in enumerate(inv_freq):
                if b < cutoff:
                    inv_freq[i] = cutoff / 16 if b >= cutoff / 8 else 0.0
        return Frequencies(inv_freq, rope.table_scale)


@register("cope")
@dataclass(frozen=True)
class Cope(BuiltIn):
    """Clipped RoPE: slow pairs fade out along half a cosine; fast pairs keep their frequency.

    ``inv_i = b_i (1 + cos(pi k / (n - 1))) / 2`` for the ``n`` slowest pairs, ``k`` from 0 to ``n - 1``: the first of
    them keeps its frequency, the last stops. cos and sin are not rescaled. The schedule has no factor; it is intended
    as the starting point for training at the longer length.

    Attributes:
        clipped_pairs: ``n``. Default: the number of pairs that make less than one turn inside the trained length. (The
            released code fixes 20 of Llama 3's 64 pairs as ``clip_low_n``.)
    """

    does = "the slowest pairs fade out"
    paper = "Li et al. 2026, arXiv:2602.05258"

    clipped_pairs: int | None = at_least(2, None)

    def __call__(self, rope: Rope, length: int) -> Frequencies:
        inv_freq = rope.inv_freq()
        clipped = self.clipped_pairs
        if clipped is None:
            clipped = sum(0 < turns < 1 for turns in rope.turns())
            if clipped < 2:  # the first one keeps its frequency, so a single pair changes nothing
                raise ScheduleError(
                    "cope fades out pairs that make less than one turn within the trained length of "
                    f"{rope.original_length:,} tokens, and this model has {clipped}; give clipped_pairs"
                )
        turning = sum(f > 0 for f in inv_freq)
        n = min(clipped, turning)
        first = turning - n
        faded = []
        for k, b in enumerate(inv_freq[first:turning]):
            kept = 1 + math.cos(math.pi * (k / (n - 1)))
            faded.append(b * kept / 2)
        return Frequencies(inv_freq[:first] + faded + inv_freq[turning:], rope.table_scale)
