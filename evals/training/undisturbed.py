"""Measuring in the middle of a training, so that the training goes on as if nothing had happened."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch

from ...models.rotary_modules import evaluating, preserved
from ..scoring.scorer import Scorer

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel

    from ..scoring.scorer import State


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Restores afterwards the random states, the training mode and the rotary tables.

    Inside, the model is in evaluation mode, and computes in the dtype of its weights: the autocast that accelerate puts
    around ``forward`` is out, so that the figures are those of ``ropescale eval`` on the saved weights.
    """
    _reshard(model)
    with ExitStack() as stack:
        for context in (_same_random_states(), preserved(model), evaluating(model), _without_autocast(model)):
            stack.enter_context(context)
        yield


def _reshard(model: nn.Module) -> None:
    """Gives back the weights that FSDP2 left gathered after a forward pass: what reads them would hold on to them."""
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


@contextmanager
def _same_random_states() -> Iterator[None]:
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(range(torch.cuda.device_count()), device_type="cuda"):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


@contextmanager
def _without_autocast(model: nn.Module) -> Iterator[None]:
    """Takes out the ``forward`` that accelerate has put over a model's own; it keeps that as ``_original_forward``."""
    wrapped = [
        module for module in model.modules() if "_original_forward" in vars(module) and "forward" in vars(module)
    ]
    kept = [vars(module).pop("forward") for module in wrapped]
    try:
        yield
    finally:
        for module, forward in zip(wrapped, kept, strict=True):
            vars(module)["forward"] = forward


class SharedScorer(Scorer):
    """Scores windows under a model whose weights several processes hold together.

    All of them feed the same windows at the same time, through the outermost module, which gathers the weights. The
    head does not run apart, so the logits of one window are held whole; and a batch that does not fit is not tried
    again, because the others would not know.

    Args:
        model: the outermost module.
    """

    def __init__(self, model: PreTrainedModel, logits_bytes: int) -> None:
        super().__init__(model, logits_bytes)
        self.model, self.split, self.retries = model, False, False

    def check(self, ids: torch.Tensor) -> None:
        """Nothing runs apart here, so there is nothing to compare."""

    def score(self, ids: torch.Tensor, chunk: int | None = None) -> torch.Tensor:
        # Weights that are gathered in inference mode could not take part in a backward pass later.
        with torch.inference_mode(False), torch.no_grad():
            return super().score(ids)

    def states(self, ids: torch.Tensor, chunk: int | None = None) -> State:
        with torch.inference_mode(False), torch.no_grad():
            return super().states(ids)
