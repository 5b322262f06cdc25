"""Adjusted base frequency: Xiong et al. 2023, "Effective Long-Context Scaling of Foundation Models",
arXiv:2309.16039."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..rope import Rope
from .base import OtherTheta, above, register


@register("abf")
@dataclass(frozen=True)
class Abf(OtherTheta):
    """Changes only theta: ``theta'^(-2i/d)`` (section 2 of the paper; Code Llama uses 1e6).

    Pair 0 keeps its frequency; a larger theta slows the slow pairs most. cos and sin are not rescaled. Intended for
    training; ``ntk`` derives theta from a factor without training.

    Attributes:
        rope_theta: the new base, above 1.
    """

    does: ClassVar[str] = "another theta"
    paper: ClassVar[str] = "Xiong et al. 2023, arXiv:2309.16039"

    rope_theta: float = above(1)

    def theta(self, rope: Rope) -> float:
        return self.rope_theta
