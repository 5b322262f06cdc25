"""Packs documents into windows of one length, each of which begins with BOS."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.utils.data import Dataset

from ...errors import DataError

if TYPE_CHECKING:
    pass


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

    @cached_property
    def sha256(self) -> str:
        """The hash of all windows, in order."""
        return hashlib.sha256(np.ascontiguousarray(self.windows, "<i4").tobytes()).hexdigest()


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
