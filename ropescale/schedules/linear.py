"""Position Interpolation: Chen et al. 2023, "Extending Context Window of Large Language Models via Positional
Interpolation", arXiv:2306.15595; proposed independently by kaiokendev (https://kaiokendev.github.io/til)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ..rope import Rope
from .base import BuiltIn, Frequencies, at_least, plain_form, register


@register("linear")
@dataclass(frozen=True)
class Linear(BuiltIn):
    """Position interpolation: every pair is divided by the factor, ``b_i / s``; no pair keeps its frequency.

    Equivalent to dividing positions by ``s`` (equation 4 of the paper). cos and sin are not rescaled.

    Attributes:
        factor: the extension factor ``s``; 1 or more.
    """

    does: ClassVar[str] = "every pair slower by the factor"
    paper: ClassVar[str] = "Chen et al. 2023, arXiv:2306.15595"

    factor: float = at_least(1)

    def __call__(self, rope: Rope, length: int) -> Frequencies:
        return Frequencies([b / self.factor for b in rope.inv_freq()], rope.table_scale)

    def rope_parameters(self, rope: Rope) -> Mapping[str, object] | None:
        return plain_form(rope, factor=self.factor)
