"""The training loss in chunks, with memory independent of the vocabulary.

The full logits of a window take ``4 L V`` bytes in float32, and their gradient takes the same: 33.6 GB for 32,768
tokens of Llama 3's vocabulary. Here the trunk runs once, and the head runs over blocks of rows, which are recomputed in
the backward pass (arXiv 1604.06174). The head is the model's own ``forward`` with the trunk's cached output, so that it
includes the model's own changes to its logits.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers.modeling_outputs import CausalLMOutput

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
        logits_bytes: the memory for one block of float32 logits, in bytes.
    """
    inner: Any = unwrapped(model)
    trunk, forward = inner.base_model, inner.forward
    if trunk is inner:  # no separate trunk
        yield
        return
    size = max(1, logits_bytes // (4 * embedding_shape(inner)[0]))

    def block_loss(output: Any, hidden: torch.Tensor, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Returns the summed loss of a block of rows, in nats."""
        known = type(output)(**{**output, "last_hidden_state": hidden})
        with answering(trunk, lambda *args, **kwargs: known):
            logits = forward(input_ids=ids, use_cache=False).logits[0].float()
        return functional.cross_entropy(logits, targets, ignore_index=-100, reduction="sum")

    @functools.wraps(forward)
    def chunked(*args: Any, labels: torch.Tensor | None = None, **kwargs: Any) -> Any:
        if labels is None or not inner.training or args:
            return forward(*args, **({} if labels is None else {"labels": labels}), **kwargs)
        count = kwargs.pop("num_items_in_batch", None)
        output = trunk(**kwargs | {"use_cache": False, "return_dict": True})
        hidden, ids = output.last_hidden_state[:, :-1], kwargs["input_ids"][:, :-1].reshape(1, -1)
        hidden = hidden.reshape(1, -1, hidden.shape[-1])
        targets = labels[:, 1:].reshape(-1).to(hidden.device)
        total = hidden.new_zeros((), dtype=torch.float32)
        for start in range(0, len(targets), size):
            rows = slice(start, start + size)
            parts = hidden[:, rows], ids[:, rows], targets[rows]
            total = total + checkpoint(block_loss, output, *parts, use_reentrant=False)
        return CausalLMOutput(loss=total / ((targets != -100).sum() if count is None else count))

    with answering(inner, chunked):
        yield
