"""The plan of a pass: the windows that are fed together, determined before the run.

A plan is a pure function of the documents' sizes, the length, the stride and ``batch_tokens``. Its batches are the unit
that is scored, stored and resumed. A model's rounding depends on which windows are fed together, so every execution of
a plan feeds exactly these batches. The stored bytes depend neither on the number of processes nor on interruptions. The
only exception is a batch that does not fit into memory: it is scored in parts, which changes only rounding; a resumed
run splits batches in the same way.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Generic, TypeVar

import numpy as np

from ..data.windows import Window, prefix, sliding

F = TypeVar("F")

Applied = Callable[[], AbstractContextManager[object]]
"""A function that returns a context manager in which a variant's tables are live."""

Arrays = Mapping[str, np.ndarray]
"""The numbers of a batch by name, each array with its own dtype and shape.

For windows, "nll" has the NLL in nats of each scored token, row after row, fp32. A comparison of predictions has "kl"
and "same" of these tokens instead (:meth:`ropescale.evals.scoring.executor.Executor.compare`). For prompts, see
:func:`ropescale.evals.data.prompts.joined`.
"""

Finished = Mapping[int, Arrays]
"""The numbers of finished batches, by the batches' numbers."""

Form = Mapping[str, tuple[type[np.generic], tuple[int, ...]]]
"""The dtype and the shape of each array of a batch."""


@dataclass(frozen=True, slots=True)
class Feed:
    """A window of a document."""

    document: int
    window: Window


@dataclass(frozen=True, slots=True)
class Batch(Generic[F]):
    """Windows of texts, or prompts, of equal length that are fed together.

    Attributes:
        number: the number of the batch in the plan, from 0.
        feeds: the windows, or the numbers of the prompts, in the order of the rows.
        positions: the fed positions of each row, including BOS.
    """

    number: int
    feeds: tuple[F, ...]
    positions: int

    @property
    def fed(self) -> int:
        """The number of fed positions in all rows."""
        return len(self.feeds) * self.positions


@dataclass(frozen=True)
class BatchPlan(Generic[F]):
    """The batches of a pass over all documents or prompts.

    Attributes:
        batches: the batches, longest rows first, so that memory problems appear at once.
        sizes: per document, the number of scored tokens; empty for prompts.
    """

    batches: tuple[Batch[F], ...]
    sizes: tuple[int, ...] = ()

    @property
    def windows(self) -> int:
        """The number of windows or prompts."""
        return sum(len(batch.feeds) for batch in self.batches)

    @property
    def positions(self) -> int:
        """The number of fed tokens, including BOS."""
        return sum(batch.fed for batch in self.batches)

    @cached_property
    def sha256(self) -> str:
        """The hash of the rows of all batches, in order."""
        digest = hashlib.sha256()
        for batch in self.batches:
            digest.update(f"{batch}\n".encode())
        return digest.hexdigest()


class ScoresBatches(ABC):
    """A scorer of planned batches."""

    @abstractmethod
    def score(self, batch: Batch) -> Arrays:
        """Returns the numbers of a batch."""

    def stream(self, batches: Sequence[Batch]) -> Iterable[tuple[Batch, Arrays]]:
        """Scores several batches, and yields each when it is finished."""
        return zip(batches, map(self.score, batches))

    def confirm(self, batch: Batch, before: Arrays) -> None:  # noqa: B027 (only servers may have changed)
        """Verifies that scoring a finished batch again would give the same numbers."""


class ScoresTexts(ABC):
    """A scorer of the documents of one corpus."""

    @abstractmethod
    def under(self, tables: object) -> ScoresBatches:
        """Returns the scorer of batches under these tables, which must be live where they can be changed; None for
        those that the model has."""

    def go_on(self, limits: Sequence[tuple[int, int]], keep: Callable[[int, int], None]) -> None:  # noqa: B027
        """Splits batches as an earlier run did after it ran out of memory, where that can happen."""

    def check(self, first: Batch[Feed]) -> None:  # noqa: B027 (of a server, the first response shows it)
        """Checks how the first batch can be scored."""

    def compare(
        self, one: Applied, others: Sequence[Applied], batch: Batch[Feed], lacking: Sequence[int]
    ) -> list[Arrays]:
        """Compares the predictions of several variants with those of one, where the backend ``compares``."""
        raise NotImplementedError


def per_token(**dtypes: type[np.generic]) -> Callable[[Batch[Feed]], Form]:
    """Returns a function that gives a batch's form if every array has a number per scored token."""

    def form(batch: Batch[Feed]) -> Form:
        count = sum(feed.window.count for feed in batch.feeds)
        return {name: (dtype, (count,)) for name, dtype in dtypes.items()}

    return form


def assembled(plan: BatchPlan[Feed], finished: Finished, name: str) -> list[np.ndarray]:
    """Returns the numbers of each document's scored tokens, fp32.

    Args:
        finished: the batches by their numbers.
        name: the name of an array with a number per scored token.
    """
    pieces: list[tuple[Feed, np.ndarray]] = []
    for batch in plan.batches:
        ends = np.cumsum([feed.window.count for feed in batch.feeds])
        pieces += zip(batch.feeds, np.split(finished[batch.number][name], ends[:-1]), strict=True)
    found: list[list[np.ndarray]] = [[] for _ in plan.sizes]
    for feed, numbers in sorted(pieces, key=lambda piece: piece[0].window.start):
        found[feed.document].append(numbers)
    whole = []
    for each in found:
        is_alone = len(each) == 1  # and is not copied
        whole.append(each[0] if is_alone else np.concatenate([np.empty(0, np.float32), *each]))
    return whole


def plan_pass(
    tokens: Sequence[int],
    length: int,
    stride: int | None,
    bos: bool,
    batch_tokens: int,
    slide: Callable[[int, int, int, bool], Iterable[Window]] = sliding,
) -> BatchPlan:
    """Plans one pass at one length.

    Args:
        tokens: the number of tokens of each document, without BOS.
        stride: the stride of sliding windows; None feeds the first ``length`` positions of each document, which must
            be at least that long.
        batch_tokens: the maximum number of positions in a batch; a longer window is a batch of its own.
        slide: yields the windows of a document; used only with a stride.
    """
    feeds = []
    for number, count in enumerate(tokens):
        windows = [prefix(length, bos)] if stride is None else slide(count, length, stride, bos)
        feeds += [Feed(number, window) for window in windows]
    batches: list[Batch] = []
    ordered = sorted(feeds, key=lambda feed: -_positions(feed, bos))  # stable: then by document, then by start
    for positions, equal in groupby(ordered, key=lambda feed: _positions(feed, bos)):
        together = tuple(equal)
        size = max(1, batch_tokens // positions)
        for start in range(0, len(together), size):
            batches.append(Batch(len(batches), together[start : start + size], positions))
    sizes = [0] * len(tokens)
    for feed in feeds:
        sizes[feed.document] += feed.window.count
    return BatchPlan(tuple(batches), tuple(sizes))


def _positions(feed: Feed, bos: bool) -> int:
    return feed.window.stop - feed.window.start + bos


def owners(costs: Sequence[float], size: int) -> list[int]:
    """Assigns the batches, in order of decreasing cost, each to the least loaded process.

    With this rule (Graham's longest processing time, SIAM J. Appl. Math. 17, 1969), the highest load is at most 4/3 of
    the optimum.

    Returns:
        The number of each batch's process.
    """
    loads = [0.0] * size
    owner = [0] * len(costs)
    for number in sorted(range(len(costs)), key=lambda number: -costs[number]):
        owner[number] = loads.index(min(loads))
        loads[owner[number]] += costs[number]
    return owner


def cost(batch: Batch) -> float:
    """Estimates the relative time of a batch, linear in its positions and quadratic in its windows' length.

    Attention takes as long as everything else at about 32,768 positions (57,000 for an 8 B Llama, less for smaller
    models). The order of magnitude is enough to distribute batches.
    """
    return batch.fed * (1 + batch.positions / 32768)
