"""p-RoPE: Barbero et al. 2024, "Round and Round We Go! What makes Rotary Positional Encodings useful?",
arXiv:2410.06205; transformers' rope type ``proportional`` (Gemma 4, LFM3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from ..errors import ScheduleError
from ..rope import Rope
from .base import BuiltIn, Frequencies, at_least, plain_form, register


@register("proportional")
@dataclass(frozen=True)
class Proportional(BuiltIn):
    """p-RoPE: only the fastest pairs turn, divided by the factor; the slow ones stand still.

    ``inv_i = theta^(-2i/h) / s`` for ``i < k = int(p h // 2)`` and 0 from there on, with ``h`` the *head* dim
    (the paper's p-RoPE with fraction ``p``, as transformers computes it). cos and sin are not rescaled.

    Attributes:
        partial_rotary_factor: the share of pairs that turn, ``p``, from 0 (no position at all) to 1 (plain RoPE).
        factor: divides the pairs that turn, ``s``; 1 or more.
    """

    does: ClassVar[str] = "only the fastest pairs turn"
    paper: ClassVar[str] = "Barbero et al. 2024, arXiv:2410.06205"

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

    def rope_parameters(self, rope: Rope) -> Mapping[str, object] | None:
        scaling = {"partial_rotary_factor": self.partial_rotary_factor}
        return plain_form(replace(rope, rotated_pairs=self.turning(rope), scaling=scaling), factor=self.factor)
