"""Looks whether a training still has numbers: its last loss, and the weights that it trains."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn


class LastLoss:
    """A forward hook that keeps the loss of the last pass in training mode, where the model itself computes one."""

    value: torch.Tensor | None = None

    def __call__(self, module: nn.Module, given: Any, output: Any) -> None:
        if module.training:
            first = output[0] if isinstance(output, tuple) and output else None
            loss = output.get("loss") if isinstance(output, Mapping) else first
            self.value = loss.detach() if isinstance(loss, torch.Tensor) and loss.numel() == 1 else None


def problem_of(model: nn.Module, loss: torch.Tensor | None) -> str:
    """Says what is not finite, in a sentence; empty where all is. Of weights in several processes, this one's part."""
    if loss is not None and not math.isfinite(loss.item()):
        return f"the last loss is {loss.item()}; {_ADVICE}"
    trained = {name: _own(each) for name, each in model.named_parameters() if each.requires_grad}
    trained = {name: each for name, each in trained.items() if each.numel()}
    if not trained or math.isfinite(nn.utils.get_total_norm(trained.values(), math.inf)):
        return ""
    wrong = [name for name, each in trained.items() if not each.isfinite().all()]
    return f"{len(wrong)} of {len(trained)} trained tensors are not finite, {wrong[0]} among them; {_ADVICE}"


_ADVICE = "nothing is saved of this step; train with a lower learning rate, or in bfloat16 instead of float16"


def _own(parameter: Any) -> torch.Tensor:
    return (parameter.to_local() if hasattr(parameter, "to_local") else parameter).detach()
