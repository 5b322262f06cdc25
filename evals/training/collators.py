"""Collators for long-context training: mixed windows, and PoSE. They work in any Trainer, and draw no random numbers.

What is drawn for a batch follows from its tokens and a seed, so a training that is continued sees the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.utils.data import Dataset

from ...errors import DataError

Batch = dict[str, torch.Tensor]
Features = Sequence[Mapping[str, torch.Tensor | Sequence[int]]]


@dataclass(frozen=True)
class PlainWindows:
    """Stacks windows of one length: ``input_ids`` and ``labels``, int64 [windows, length]."""

    def __call__(self, features: Features) -> Batch:
        ids = stacked(features)
        return {"input_ids": ids, "labels": ids.clone()}


@dataclass(frozen=True)
class MixedWindows:
    """Cuts a share of the batches of long windows into short ones, of about as many tokens.

    A batch is either long or short, never both: where tables depend on the length (longrope, dynamic schedules), a
    model takes those of the longest text in a batch for all of it. So short windows are trained under exactly the table
    and scale that the saved configuration computes for them, and long ones under theirs. (transformers' own ``dynamic``
    keeps the table of the longest text so far; put in by :func:`ropescale.patch` it follows each batch.)

    Attributes:
        short: positions of a short window, BOS included.
        share: of the batches, between 0 and 1, that are cut.
        bos: in front of every short window; None for a model without.
        seed: another one cuts other batches.
    """

    short: int
    share: float = 0.5
    bos: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise DataError(f"share {self.share} is not between 0 and 1", "share")
        if self.short < 2:
            raise DataError(f"short {self.short} leaves no token to predict; give 2 or more", "short")

    def __call__(self, features: Features) -> Batch:
        ids = stacked(features)
        if self.short > ids.shape[1]:
            raise DataError(f"short {self.short} is longer than the windows ({ids.shape[1]}); give less", "short")
        if float(torch.rand((), generator=generator(ids, self.seed))) < self.share:
            ids = self.cut(ids)
        return {"input_ids": ids, "labels": ids.clone()}

    def cut(self, ids: torch.Tensor) -> torch.Tensor:
        """Cuts long windows, int64 [windows, length], into short ones; what is left over at the end is left out."""
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
    """Positional skip-wise training: short windows whose positions reach up to a long context (arXiv 2309.10400, 3.2).

    A window is cut in two chunks at a place drawn from 1 to half of it. The first has the positions 0, 1, ...; those of
    the second are shifted by a number drawn from 0 to ``target - window``, evenly. The text between them is left out as
    the authors' code does: where a window of text is longer than what is trained on, the second chunk is cut from
    anywhere behind the first.

    The batch has an attention mask of ones: without one, transformers takes a jump in the positions for another
    document, and the second chunk would not attend to the first.

    Attributes:
        target: the positions that are reached: the context to extend to.
        window: positions of a trained window; None takes windows as they come.
        seed: another one draws other places.
    """

    target: int
    window: int | None = None
    seed: int = 0

    def __call__(self, features: Features) -> Batch:
        rows = stacked(features)
        window = rows.shape[1] if self.window is None else self.window
        if not 2 <= window <= min(self.target, rows.shape[1]):
            raise DataError(
                f"window {window} does not lie between 2 and the text's {rows.shape[1]} and the target's {self.target} "
                "positions",
                "window",
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
        DataError: they have several lengths.
    """
    rows = [torch.as_tensor(each["input_ids"], dtype=torch.int64) for each in features]
    if len({len(row) for row in rows}) > 1:
        raise DataError("the windows of a batch have several lengths; pack documents into windows of one first")
    return torch.stack(rows)


def generator(ids: torch.Tensor, seed: int) -> torch.Generator:
    """Returns a source of random numbers that follows from token ids and a seed."""
    digest = hashlib.sha256(f"{seed} ".encode() + ids.numpy().tobytes()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def _between(low: int, high: int, source: torch.Generator) -> int:
    """Draws a whole number, both ends included."""
    return int(torch.randint(low, high + 1, (), generator=source))


# --- packing
# Packs documents into windows of one length, each of which begins with BOS.


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

    In the stream each document stands between BOS and EOS (one of them where both are the same token). A window that
    does not begin where a document does gets a BOS of its own in front, as everything that a model reads has one; no
    token is left out but those of the last window that is not full. Windows attend across the documents in them.

    Args:
        documents: token ids.
        length: positions of a window, BOS included.
        bos, eos: the ids, or None.

    Raises:
        DataError: all documents together do not fill one window.
    """
    stream = _stream(documents, bos, eos)
    found = list(_windows(stream, length, bos))
    if not found:
        raise DataError(
            f"the documents have {len(stream):,} tokens in all, and a window has {length:,}; give more text, or a "
            "smaller length",
            "length",
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
        own = bos is not None and stream[at] != bos  # the window begins inside a document
        part = stream[at : at + length - own]
        at += len(part)
        if len(part) + own == length:
            yield np.concatenate([np.array([bos], np.int32), part]) if own else part
