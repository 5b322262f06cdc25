"""Collators for long-context training: mixed windows, and PoSE. They work in any Trainer, and draw no random numbers.

What is drawn for a batch follows from its tokens and a seed, so a training that is continued sees the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

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
        drawn = [self._drawn(ids, window) for ids in rows]
        ids, positions = (torch.stack(each) for each in zip(*drawn, strict=True))
        labels = ids.clone()
        return {"input_ids": ids, "labels": labels, "position_ids": positions, "attention_mask": torch.ones_like(ids)}

    def _drawn(self, ids: torch.Tensor, window: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns a window's tokens and positions, int64 [window] each."""
        source = generator(ids, self.seed)
        first = _between(1, (window + 1) // 2, source)
        end = _between(window, len(ids), source)
        skip = _between(0, self.target - window, source)
        positions = torch.arange(window)
        positions[first:] += skip
        return torch.cat([ids[:first], ids[end - (window - first) : end]]), positions


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
