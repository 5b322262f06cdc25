"""Parts for long-context training with any Trainer, to be copied: packing, mixed windows, PoSE, the loss in blocks.

The collators use no global random state: a batch's tokens and a seed determine its random draws, so resumed training
repeats them.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import Dataset
from transformers.modeling_outputs import CausalLMOutput

Batch = dict[str, torch.Tensor]
Features = Sequence[Mapping[str, torch.Tensor | Sequence[int]]]


@dataclass(frozen=True)
class MixedWindows:
    """A collator that cuts a share of the batches of long windows into short windows with about as many tokens.

    A batch has either long or short windows, never both: if tables depend on the length (longrope, dynamic schedules),
    a model uses the table of the longest window for the full batch. With batches of one length, all windows train with
    exactly the table and scale that the saved configuration computes for them. (transformers' own ``dynamic`` keeps the
    table of the longest window so far; :func:`ropescale.patch` makes the table follow each batch.)

    Attributes:
        short: the number of positions of a short window, including BOS.
        share: the share of batches to cut, between 0 and 1.
        bos: the id before every short window; None for a model without BOS.
        seed: selects the batches to cut.
    """

    short: int
    share: float = 0.5
    bos: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise ValueError(f"share {self.share} is not between 0 and 1")
        if self.short < 2:
            raise ValueError(f"short {self.short} leaves no token to predict; give 2 or more")

    def __call__(self, features: Features) -> Batch:
        ids = stacked(features)
        if self.short > ids.shape[1]:
            raise ValueError(f"short {self.short} is longer than the windows ({ids.shape[1]}); give a smaller number")
        if float(torch.rand((), generator=generator(ids, self.seed))) < self.share:
            ids = self.cut(ids)
        return {"input_ids": ids, "labels": ids.clone()}

    def cut(self, ids: torch.Tensor) -> torch.Tensor:
        """Cuts long windows, int64 [windows, length], into short ones; drops the remainder."""
        first = 0 if self.bos is None else 1
        body = ids[:, first:] if self.bos is not None and bool((ids[:, 0] == self.bos).all()) else ids
        size = self.short - first
        count = body.shape[1] // size
        pieces = body[:, : count * size].reshape(-1, size)
        if self.bos is None:
            return pieces
        return torch.cat([torch.full((len(pieces), 1), self.bos, dtype=ids.dtype), pieces], dim=1)


@dataclass(frozen=True)
class PoseWindows:
    """A collator for positional skip-wise training (PoSE, arXiv 2309.10400, section 3.2): short windows whose positions
    reach up to a long context.

    A window is cut into two chunks at a random point in its first half. The first chunk has the positions 0, 1, ...;
    the positions of the second chunk are shifted by a number drawn uniformly from 0 to ``target - window``. As in the
    authors' code, the text between the chunks is skipped: if a given window is longer than ``window``, the second chunk
    is cut from a random place after the first.

    The batch has an attention mask of ones: without one, transformers interprets a jump in the positions as a new
    document, and the second chunk would not attend to the first.

    Attributes:
        target: the target context in positions.
        window: the number of positions of a trained window; None uses the full windows.
        seed: selects the cuts and shifts.
    """

    target: int
    window: int | None = None
    seed: int = 0

    def __call__(self, features: Features) -> Batch:
        rows = stacked(features)
        window = rows.shape[1] if self.window is None else self.window
        if not 2 <= window <= min(self.target, rows.shape[1]):
            raise ValueError(
                f"window {window} must be at least 2, and at most the text's {rows.shape[1]} and the target's "
                f"{self.target:,} positions"
            )
        kept, positions = [], torch.arange(window).repeat(len(rows), 1)
        for row, place in zip(rows, positions, strict=True):
            source = generator(row, self.seed)
            first = _between(1, (window + 1) // 2, source)
            end = _between(window, len(row), source)
            place[first:] += _between(0, self.target - window, source)
            kept.append(torch.cat([row[:first], row[end - (window - first) : end]]))
        ids = torch.stack(kept)
        mask = torch.ones_like(ids)
        return {"input_ids": ids, "labels": ids.clone(), "position_ids": positions, "attention_mask": mask}


def stacked(features: Features) -> torch.Tensor:
    """Returns the ``input_ids`` of windows, int64 [windows, length].

    Raises:
        ValueError: the windows differ in length.
    """
    rows = [torch.as_tensor(feature["input_ids"], dtype=torch.int64) for feature in features]
    if len({len(row) for row in rows}) > 1:
        raise ValueError("the windows of a batch differ in length; pack documents into windows of one length first")
    return torch.stack(rows)


def generator(ids: torch.Tensor, seed: int) -> torch.Generator:
    """Returns a random generator seeded by token ids and a seed."""
    digest = hashlib.sha256(f"{seed} ".encode() + ids.numpy().tobytes()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def _between(low: int, high: int, source: torch.Generator) -> int:
    """Draws an integer from a closed range."""
    return int(torch.randint(low, high + 1, (), generator=source))


# --- Packing: documents as windows of one length that begin with BOS


class Packed(Dataset[dict[str, torch.Tensor]]):
    """Windows of token ids for next-token prediction: ``input_ids`` and ``labels``, int64 [length].

    Attributes:
        windows: int32 [windows, length].
    """

    def __init__(self, windows: np.ndarray) -> None:
        self.windows = windows

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        ids = torch.from_numpy(self.windows[number].astype(np.int64))
        return {"input_ids": ids, "labels": ids.clone()}


def pack(documents: Iterable[Sequence[int] | np.ndarray], length: int, bos: int | None, eos: int | None) -> Packed:
    """Joins documents into one stream and cuts it into windows.

    In the stream, BOS precedes and EOS follows every document (a single token if both are equal). A window that starts
    inside a document gets an additional BOS, so that every window begins with BOS. Only an incomplete last window is
    dropped. Tokens attend across the document boundaries in a window.

    Args:
        documents: token ids of each document.
        length: the number of positions of a window, including BOS.
        bos, eos: the ids of these tokens, or None for a model without them.

    Raises:
        ValueError: the documents do not fill one window.
    """
    stream = _stream(documents, bos, eos)
    found = list(_windows(stream, length, bos))
    if not found:
        raise ValueError(
            f"the documents have {len(stream):,} tokens in all, and a window has {length:,}; give more text, or a "
            "smaller length"
        )
    return Packed(np.stack(found))


def _stream(documents: Iterable[Sequence[int] | np.ndarray], bos: int | None, eos: int | None) -> np.ndarray:
    parts: list[np.ndarray] = []
    for document in documents:
        ids = np.asarray(document, np.int32)
        if bos is not None and not (len(ids) and ids[0] == bos):
            parts.append(np.array([bos], np.int32))
        parts.append(ids)
        if eos is not None and eos != bos:
            parts.append(np.array([eos], np.int32))
    return np.concatenate(parts) if parts else np.empty(0, np.int32)


def _windows(stream: np.ndarray, length: int, bos: int | None) -> Iterator[np.ndarray]:
    at = 0
    while at < len(stream):
        own = bos is not None and stream[at] != bos  # the window starts inside a document
        part = stream[at : at + length - own]
        at += len(part)
        if len(part) + own == length:
            yield np.concatenate([np.array([bos], np.int32), part]) if own else part


# --- The loss in blocks
# The full logits of a window take 4 L V bytes in float32, and their gradient the same: 33.6 GB for 32,768 tokens of
# Llama 3's vocabulary. Here the trunk runs once, and the head runs over blocks of rows, which are recomputed in the
# backward pass (arXiv 1604.06174). The head is the model's own forward with the trunk's cached output, so that it
# includes the model's own changes to its logits.


@contextmanager
def forwarding(module: nn.Module, forward: Any) -> Iterator[None]:
    """Replaces ``module.forward`` inside the block, and restores it, even if it was set on the instance."""
    own = vars(module).get("forward")
    module.forward = forward
    try:
        yield
    finally:
        if own is None:
            del module.forward
        else:
            module.forward = own


@contextmanager
def chunked_loss(model: nn.Module, logits_bytes: int = 2**26) -> Iterator[None]:
    """Makes a causal language model compute its training loss block by block inside the ``with`` block.

    ``model(input_ids, labels)`` then returns only the loss. In evaluation mode, and without labels, the model is
    unchanged.

    Args:
        model: a transformers model, possibly PEFT-wrapped; not yet wrapped for several processes.
        logits_bytes: the memory for one block of float32 logits, in bytes.
    """
    inner: Any = model.get_base_model() if hasattr(model, "get_base_model") else model
    trunk, forward = inner.base_model, inner.forward
    if trunk is inner:  # no separate trunk
        yield
        return
    size = max(1, logits_bytes // (4 * inner.get_input_embeddings().weight.shape[0]))

    def block_loss(output: Any, hidden: torch.Tensor, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Returns the summed loss of a block of rows, in nats."""
        known = type(output)(**{**output, "last_hidden_state": hidden})
        with forwarding(trunk, lambda *args, **kwargs: known):
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

    with forwarding(inner, chunked):
        yield
