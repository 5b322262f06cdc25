"""The training loss in chunks, with memory independent of the vocabulary.

The full logits of a window take ``4 L V`` bytes in float32, and their gradient as many: 33.6 GB for 32,768 tokens of
Llama 3's vocabulary. Here the trunk runs once, and the head runs over blocks of rows, which are recomputed in the
backward pass (arXiv 1604.06174). The head is the model's own ``forward`` with the trunk's cached output, so that it
includes the model's own changes to its logits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from ...models.rotary_modules import unwrapped
from ..scoring.memory import embedding_shape
from ..scoring.scorer import LOGITS_BYTES, answering

if TYPE_CHECKING:
    from torch import nn


@contextmanager
def chunked_loss(model: nn.Module, logits_bytes: int = LOGITS_BYTES) -> Iterator[None]:
    """Makes a causal language model compute its training loss block by block inside the ``with`` block.

    ``model(input_ids, labels)`` then returns only the loss. In evaluation mode, and without labels, the model is
    unchanged.

    Args:
        model: a transformers model, possibly PEFT-wrapped; not yet wrapped for several processes.
        logits_bytes: budget for one block of float32 logits.
    """
    inner = unwrapped(model)
    if inner.base_model is inner:  # no separate trunk
        yield
        return
    chunked = _Chunked(inner, max(1, logits_bytes // (4 * embedding_shape(inner)[0])))
    with answering(inner, functools.wraps(inner.forward)(chunked)):
        yield


class _Chunked:
    """A model's ``forward`` whose loss is the sum over blocks of rows."""

    def __init__(self, model: Any, rows: int) -> None:
        self.model, self.rows = model, rows
        self.forward: Callable[..., Any] = model.forward
        self.trunk: nn.Module = model.base_model

    def __call__(self, *args: Any, labels: torch.Tensor | None = None, **kwargs: Any) -> Any:
        if labels is None or not self.model.training or args:
            return self.forward(*args, **({} if labels is None else {"labels": labels}), **kwargs)
        count = kwargs.pop("num_items_in_batch", None)
        kwargs.pop("use_cache", None)
        kwargs.pop("return_dict", None)
        output = self.trunk(**kwargs, use_cache=False, return_dict=True)
        total, seen = self._summed(output, kwargs, labels)
        from transformers.modeling_outputs import CausalLMOutput

        return CausalLMOutput(loss=total / (seen if count is None else count))

    def _summed(self, output: Any, kwargs: dict[str, Any], labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the summed loss in nats over all targets, and their number."""
        hidden, ids = output.last_hidden_state[:, :-1], kwargs["input_ids"][:, :-1]
        flat, ids = hidden.reshape(1, -1, hidden.shape[-1]), ids.reshape(1, -1)
        targets = labels[:, 1:].reshape(-1).to(flat.device)
        total = flat.new_zeros((), dtype=torch.float32)
        for start in range(0, len(targets), self.rows):
            rows = slice(start, start + self.rows)
            total = total + checkpoint(self._block, output, flat[:, rows], ids[:, rows], targets[rows],
                                       use_reentrant=False)  # fmt: skip
        return total, (targets != -100).sum()

    def _block(self, output: Any, hidden: torch.Tensor, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        known = type(output)(**{**output, "last_hidden_state": hidden})
        with answering(self.trunk, lambda *args, **kwargs: known):
            logits = self.forward(input_ids=ids, use_cache=False).logits[0].float()
        return functional.cross_entropy(logits, targets, ignore_index=-100, reduction="sum")
