"""Scores the batches of a plan with a model, in parts if memory is short.

A batch that does not fit is scored in halves, and a window that does not fit is scored in chunks with a key-value
cache. Both change only rounding, because the rotary tables of a pass are frozen before it starts. If memory runs out,
an accelerator or a memory limit raises an error, but a machine without a limit kills the process. The memory of long
windows is therefore estimated before they are fed.

Nothing runs in inference mode, because weights that FSDP gathers in it could not be used in a later backward pass.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch

from ...errors import RunError
from ..data.documents import Document
from .batches import Applied, Arrays, Batch, Feed, ScoresBatches, ScoresTexts
from .memory import LEAST_CHUNK, is_out_of_memory
from .scorer import Scorer, not_finite

T = TypeVar("T")

Feeding = Callable[[torch.Tensor, "int | None"], Iterable[T]]
"""A function that feeds windows, at once or in chunks, and returns the numbers of each."""


@dataclass(eq=False)
class Executor(ScoresBatches, ScoresTexts):
    """The scorer of batches, which it feeds in parts if memory is short.

    Attributes:
        documents: the plan's documents, by number.
        bos: the id to feed before every window, or None.
        note: called with notes for the user.
    """

    scorer: Scorer
    documents: Sequence[Document]
    bos: int | None
    note: Callable[[str], None]

    def __post_init__(self) -> None:
        self._most: int | None = None  # positions that fit, after an out-of-memory error
        self._chunks: dict[int, int | None] = {}  # chunk size by window length
        self._keep: Callable[[int, int], None] | None = None

    def under(self, tables: object) -> Executor:
        """Returns this scorer, because the caller makes the tables live in the model itself."""
        return self

    def go_on(self, limits: Sequence[tuple[int, int]], keep: Callable[[int, int], None]) -> None:
        """Splits batches as an earlier run did after it ran out of memory, so that their numbers do not change.

        Args:
            limits: the positions of a window, and how many of them fit; fewer than its own are its chunks.
            keep: called with each further limit.
        """
        self._keep = None
        for positions, fitting in limits:
            self._limit(positions, fitting)
        if limits:
            self.note("batches are split as in the run before, which ran out of memory")
        self._keep = keep

    def _limit(self, positions: int, fitting: int) -> None:
        """Sets a limit, unless there is a lower one."""
        if fitting < positions:
            self._chunks[positions] = min(fitting, self._chunks.get(positions) or fitting)
        else:
            self._most = min(fitting, self._most or fitting)
        if self._keep:
            self._keep(positions, fitting)

    def check(self, first: Batch[Feed]) -> None:
        """Runs :meth:`Scorer.check` on the first window of a batch."""
        with torch.no_grad():
            self.scorer.check(self._ids(first.feeds[:1])[0])

    def score(self, batch: Batch[Feed]) -> Arrays:
        """Returns the NLLs of a batch's scored tokens, "nll".

        Raises:
            RunError: logits are not finite, or a single window does not fit into memory.
        """
        nll = _scored(batch, self._fed(batch, self.scorer.score))
        self._check_finite(batch.feeds, nll)
        return {"nll": np.concatenate(nll)}

    def compare(
        self, one: Applied, others: Sequence[Applied], batch: Batch[Feed], lacking: Sequence[int]
    ) -> list[Arrays]:
        """Compares the predictions of several variants with those of one, at a batch's scored tokens.

        Args:
            one, others: a context for each variant in which its tables are live, entered once per part of the batch.
            lacking: the indexes of the others to compare.

        Returns:
            For each of these variants, "kl" with KL(one || other) in nats of every token, fp32, and "same" with
            whether both variants have the same most likely token, bool.

        Raises:
            RunError: as for :meth:`score`.
        """
        compared = [others[number] for number in lacking]
        windows = self._fed(batch, functools.partial(self._divergences, one, compared))
        found = []
        for each in zip(*windows, strict=True):  # all windows under one variant
            kl, same = (_scored(batch, rows) for rows in zip(*each, strict=True))
            self._check_finite(batch.feeds, kl)
            found.append({"kl": np.concatenate(kl), "same": np.concatenate(same)})
        return found

    def _fed(self, batch: Batch[Feed], what: Feeding[T]) -> list[T]:
        """Feeds a batch, and returns the numbers of each window."""
        if batch.positions not in self._chunks:
            self._chunks[batch.positions] = self._estimated_chunk(batch)
        size = len(batch.feeds)
        if self._most is not None:
            size = min(size, max(1, self._most // batch.positions))
        while True:
            found = []
            try:
                with torch.no_grad():
                    for start in range(0, len(batch.feeds), size):
                        found += what(self._ids(batch.feeds[start : start + size]), self._chunks[batch.positions])
                return found
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
            # Outside the handler, because the traceback keeps every tensor of the failed pass alive.
            gc.collect()
            torch.cuda.empty_cache()
            size = self._smaller(batch, size)

    def _smaller(self, batch: Batch[Feed], size: int) -> int:
        """Returns the number of windows to feed at a time after ``size`` windows did not fit.

        If a single window did not fit, returns ``size``, and reduces the size of its chunks.

        Raises:
            RunError: nothing smaller can be fed.
        """
        if not self.scorer.retries:
            raise RunError(
                f"out of memory with {len(batch.feeds)} windows of {batch.positions:,} positions; several processes "
                "share the model, and one cannot retry without the others; use more processes, a smaller "
                "batch_tokens, or bfloat16",
                "batch_tokens",
                "dtype",
            )
        if size > 1:
            half = (size + 1) // 2
            self._limit(batch.positions, half * batch.positions)
            self.note(
                f"out of memory with {size} windows of {batch.positions:,} positions; continuing with {half} at a time "
                f"(same numbers up to rounding; batch_tokens {half * batch.positions} avoids this attempt)"
            )
            return half
        chunk = self._chunks[batch.positions]
        smaller = batch.positions // 2 if chunk is None else chunk // 2
        if smaller < LEAST_CHUNK or not self._chunks_agree(batch):
            raise RunError(
                f"one window of {batch.positions:,} positions does not fit into the memory of {self.scorer.device}; "
                "use shorter lengths, bfloat16, or a device with more memory",
                "dtype",
            )
        self._limit(batch.positions, smaller)
        self.note(f"out of memory with a window of {batch.positions:,} positions; {_feeding(smaller)}")
        return size

    def _estimated_chunk(self, batch: Batch[Feed]) -> int | None:
        """Estimates the chunk size for a window; returns None if the window fits, or chunks do not help.

        Raises:
            RunError: the window cannot fit.
        """
        estimate = self.scorer.estimate(batch.positions)
        chunk = estimate.chunk(batch.positions)
        if chunk is None:
            return None
        chunks = self._chunks_agree(batch)
        estimate.refuse(batch.positions, chunks)
        needed = estimate.whole(batch.positions, batch.positions)
        if not chunks or estimate.in_chunks(batch.positions, chunk) > needed:
            return None
        self.note(
            f"a window of {batch.positions:,} positions would take about {needed / 1e9:.1f} GB; {_feeding(chunk)}"
        )
        return chunk

    @torch.no_grad()
    def _chunks_agree(self, batch: Batch[Feed]) -> bool:
        return self.scorer.chunks_agree(self._ids(batch.feeds[:1])[0])

    def _divergences(
        self, one: Applied, others: Sequence[Applied], ids: torch.Tensor, chunk: int | None
    ) -> Iterable[Sequence[tuple[torch.Tensor, torch.Tensor]]]:
        """Returns the divergences and agreements of each window under each of ``others``. Keeps the states of at most
        two variants in memory."""
        with one():
            first = self.scorer.states(ids, chunk)
        found = []
        for other in others:
            with other():
                second = self.scorer.states(ids, chunk)
            found.append(zip(*self.scorer.divergence(ids, first, second), strict=True))
        return zip(*found, strict=True)

    def _ids(self, feeds: Sequence[Feed]) -> torch.Tensor:
        """Returns the fed ids, int64 [windows, positions]."""
        first = [] if self.bos is None else [self.bos]
        rows = [self.documents[feed.document].ids[feed.window.start : feed.window.stop] for feed in feeds]
        return torch.from_numpy(np.array([[*first, *row] for row in rows], np.int64))  # seven times as fast as torch's

    def _check_finite(self, feeds: Sequence[Feed], nll: Sequence[np.ndarray]) -> None:
        """Raises an error that names the first position with NaN or infinity, because these would spoil every mean."""
        for feed, numbers in zip(feeds, nll, strict=True):
            broken = np.flatnonzero(~np.isfinite(numbers))
            if len(broken):
                position = feed.window.scored + broken[0] + (self.bos is not None)
                name = self.documents[feed.document].name
                raise not_finite(self.scorer.model, f"in {name} at position {position}")


def _scored(batch: Batch[Feed], rows: Iterable[torch.Tensor]) -> list[np.ndarray]:
    """Returns the numbers of the scored tokens of each window, which are its last ones."""
    return [row[len(row) - feed.window.count :].numpy() for row, feed in zip(rows, batch.feeds, strict=True)]


def _feeding(chunk: int) -> str:
    return f"feeding {chunk:,} at a time with a key-value cache (same numbers up to rounding)"
