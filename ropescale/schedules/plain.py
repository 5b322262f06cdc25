"""Plain RoPE: Su et al. 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding", arXiv:2104.09864."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .base import OtherTheta, register


@register("base")
@dataclass(frozen=True)
class Base(OtherTheta):
    """RoPE without scaling: every pair keeps its frequency, ``b_i = theta^(-2i/d)``; cos and sin are not rescaled.

    (Section 3.2.2 of the paper.) On top of existing scaling it changes nothing.
    """

    does: ClassVar[str] = "plain RoPE, no scaling"
    paper: ClassVar[str] = "Su et al. 2021, arXiv:2104.09864"
