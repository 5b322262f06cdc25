"""Imitates a model in a format of few bits, to measure how much such formats change its log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from transformers import PreTrainedModel

BLOCK = 32
"""Numbers that share a scale, as in llama.cpp's Q4_0 and Q8_0."""


@torch.no_grad()
def round_weights(model: PreTrainedModel, bits: float) -> None:
    """Rounds the matrices of a model in place, and lets its linear layers round their input to 8 bits, as llama.cpp
    does."""
    for weights in model.parameters():
        if weights.ndim > 1:
            weights.copy_(_rounded(weights, bits))
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            layer.register_forward_pre_hook(_round_input)


def _round_input(layer: nn.Module, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor]:
    return (_rounded(inputs[0], 8),)


def _rounded(values: torch.Tensor, bits: float) -> torch.Tensor:
    """Rounds numbers to multiples of a scale per block, whose largest number has the largest multiple."""
    if values.shape[-1] % BLOCK:
        return values
    blocks = values.unflatten(-1, (-1, BLOCK))
    most = 2 ** (bits - 1) - (bits > 4)
    scale = blocks.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(values.dtype).tiny) / most
    return (blocks / scale).round().mul(scale).flatten(-2)
