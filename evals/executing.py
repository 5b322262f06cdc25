"""Scoring the batches of a plan with a model."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ..errors import RunError
from .data import Document
from .memory import is_out_of_memory, release
from .planning import Batch, Feed
from .scoring import Scorer


@dataclass(frozen=True)
class Scored:
    """What a batch gave.

    Attributes:
        nll: of its scored tokens in nats, window after window, fp32.
        parts: in how many parts it was fed; more than 1 where it did not fit into memory.
    """

    nll: np.ndarray
    parts: int = 1


class Executor:
    """Feeds batches, in parts where memory is short.

    Args:
        documents: what the plan's document numbers mean.
        bos: the id in front of every window, or None.
        note: is told what the user should know.
    """

    def __init__(
        self, scorer: Scorer, documents: Sequence[Document], bos: int | None, note: Callable[[str], None]
    ) -> None:
        self.scorer, self.documents, self.bos, self.note = scorer, documents, bos, note
        self._most: int | None = None  # positions that fit, once something did not

    def check(self, batch: Batch) -> None:
        """The scorer's check at start-up, on the first window of a batch."""
        with torch.inference_mode():
            self.scorer.check(self._ids(batch.feeds[:1])[0])

    def score(self, batch: Batch) -> Scored:
        """The NLLs of a batch's scored tokens.

        Raises:
            RunError: logits that are not finite, or a single window that does not fit into memory.
        """
        size = len(batch.feeds)
        if self._most is not None:
            size = min(size, max(1, self._most // batch.positions))
        while (parts := self._in_parts(batch.feeds, size)) is None:
            size = self._smaller(batch, size)
        nll = [each for part in parts for each in part]
        self._check_finite(batch.feeds, nll)
        return Scored(np.concatenate(nll), len(parts))

    def _in_parts(self, feeds: Sequence[Feed], size: int) -> list[list[np.ndarray]] | None:
        """The NLLs of ``size`` windows at a time; None when memory does not suffice."""
        try:
            return [self._nll(feeds[start : start + size]) for start in range(0, len(feeds), size)]
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        # Out of the handler, because the traceback holds on to every tensor of the pass that failed.
        gc.collect()
        release(self.scorer.device)
        return None

    def _smaller(self, batch: Batch, size: int) -> int:
        if size == 1:
            raise RunError(
                f"one window of {batch.positions:,} positions does not fit into the memory of {self.scorer.device}; "
                "use shorter lengths, --dtype bfloat16, or a device with more memory"
            )
        half = (size + 1) // 2
        self._most = half * batch.positions
        self.note(
            f"out of memory with {size} windows of {batch.positions:,} positions; going on with {half} at a time "
            f"(same numbers up to rounding; --batch-tokens {self._most} avoids the attempt)"
        )
        return half

    @torch.inference_mode()
    def _nll(self, feeds: Sequence[Feed]) -> list[np.ndarray]:
        nll = self.scorer.score(self._ids(feeds)).numpy()
        # The scored tokens of a window are its last ones.
        return [row[len(row) - feed.window.count :] for row, feed in zip(nll, feeds, strict=True)]

    def _ids(self, feeds: Sequence[Feed]) -> torch.Tensor:
        """What is fed, int64 [windows, positions]."""
        first = [] if self.bos is None else [self.bos]
        rows = [self.documents[feed.document].ids[feed.window.start : feed.window.stop] for feed in feeds]
        return torch.tensor([[*first, *row] for row in rows])

    def _check_finite(self, feeds: Sequence[Feed], nll: Sequence[np.ndarray]) -> None:
        """No mean survives NaN or infinity; names where the first one is."""
        broken = [~np.isfinite(each) for each in nll]
        count = sum(int(each.sum()) for each in broken)
        if not count:
            return
        feed, where = next((feed, each) for feed, each in zip(feeds, broken, strict=True) if each.any())
        position = feed.window.scored + int(where.argmax()) + (self.bos is not None)
        raise RunError(
            f"the model's logits are NaN or infinite in {self.documents[feed.document].name} at position {position} "
            f"({count} of {sum(map(len, nll))} positions in this batch); try --dtype float32, or a smaller factor"
        )
