"""The losses of the candidates, as a sum per window and length, and their paired differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..data.documents import Document
from ..data.far_repeats import far_repeats
from ..data.windows import prefix
from ..running.corpus import windows_by_document
from ..statistics import intervals
from ..statistics.intervals import LEVEL, Estimate
from .options import Objective

Column = int | str
"""A set of tokens: a length, for the tokens up to this length, or a name."""

BEYOND, FAR = "beyond", "far repeats"
"""The names of two sets of tokens: all tokens beyond the trained length, up to the target, and those of them that
repeat text further back than that length."""


@dataclass
class CandidateLosses:
    """The summed losses of every candidate on the windows that it was measured on.

    Attributes:
        windows: the number of windows of each document, in order.
        columns: the sets of tokens to sum over in each window.
        counts: the number of tokens of each window and column, fp64 [windows, columns].
        weights: the weights of columns in the objective; they sum to 1.
        sums: for each candidate, the sums in nats, fp64 [windows, columns]; NaN if not measured.
    """

    windows: Sequence[int]
    columns: Sequence[Column]
    counts: np.ndarray
    weights: Mapping[Column, float]
    sums: dict[str, np.ndarray] = field(default_factory=dict)

    @classmethod
    def empty(
        cls, windows: Sequence[int], masks: Sequence[Mapping[Column, np.ndarray]], weights: Mapping[int, float]
    ) -> CandidateLosses:
        """Creates a table without losses.

        Args:
            masks: for each window, a mask of the tokens of each column.
        """
        counts = [[mask.sum() for mask in each.values()] for each in masks]
        return cls(windows, list(masks[0]), np.array(counts, np.float64), {**weights})

    def put(self, candidate: str, window: int, sums: Mapping[Column, float]) -> None:
        """Stores the sums of one window, by column."""
        table = self.sums.setdefault(candidate, np.full(self.counts.shape, np.nan))
        table[window, [self.columns.index(column) for column in sums]] = list(sums.values())

    def sum(self, candidate: str, window: int, column: Column) -> float:
        """Returns the sum of one column of one window, in nats."""
        return float(self.sums[candidate][window, self.columns.index(column)])

    def measured(self, candidate: str) -> list[int]:
        """Returns the windows that a candidate was measured on."""
        if candidate not in self.sums:
            return []
        needed = [self.columns.index(column) for column in self.weights]
        return np.flatnonzero(~np.isnan(self.sums[candidate][:, needed]).any(axis=1)).tolist()

    def mean(self, candidate: str, within: Sequence[int], column: Column | None = None) -> float:
        """Returns a mean loss per token over some windows: the objective, or the loss of one column if given."""
        return self.estimate(candidate, within, column).mean

    def estimate(self, candidate: str, within: Sequence[int], column: Column | None = None) -> Estimate:
        """Returns the result of :meth:`mean` with an interval, over documents or, if they are few, over windows."""
        return self._estimate(*self._of(candidate, within, column), within, LEVEL)

    def difference(
        self, one: str, other: str, within: Sequence[int], level: float = LEVEL, column: Column | None = None
    ) -> Estimate:
        """Returns the loss of one candidate minus another's on the same tokens of some windows.

        Args:
            within: the windows, ascending.
            level: the interval's two-sided coverage.
            column: the column to compare. Default: the objective.
        """
        values, shares = self._of(one, within, column)
        return self._estimate(values - self._of(other, within, column)[0], shares, within, level)

    def has_interval(self, within: Sequence[int]) -> bool:
        """Returns whether these windows suffice for an interval of the objective, whatever their losses are."""
        nothing = replace(self, sums={"": np.zeros_like(self.counts)})
        return nothing.estimate("", within).low is not None

    def tokens(self, within: Sequence[int], column: Column) -> int:
        """Returns the number of tokens of a column in some windows."""
        return int(self.counts[list(within), self.columns.index(column)].sum())

    def _of(self, candidate: str, within: Sequence[int], column: Column | None) -> tuple[np.ndarray, np.ndarray]:
        """Returns a weighted sum and a weighted count for each window; the mean is the ratio of their totals.

        The weight of each column is divided by the mean number of its tokens. If windows have equal sizes, the ratio is
        therefore the weighted mean of the columns' means.
        """
        rows, weights = list(within), self.weights if column is None else {column: 1.0}
        at = [self.columns.index(column) for column in weights]
        counts = self.counts[np.ix_(rows, at)]
        scale = np.array(list(weights.values())) / np.maximum(counts.mean(axis=0), 1e-300)
        return self.sums[candidate][np.ix_(rows, at)] @ scale, counts @ scale

    def _estimate(self, sums: np.ndarray, shares: np.ndarray, within: Sequence[int], level: float) -> Estimate:
        held = windows_by_document(self.windows, within)
        if not shares.sum():
            return Estimate(float("nan"), None, None)
        return intervals.estimate(sums.tolist(), shares.tolist(), held, level)


def column_masks(document: Document, objective: Objective, bos: bool) -> dict[Column, np.ndarray]:
    """Returns, for each column, a mask of a window's scored tokens that belong to it, bool [tokens at the target]."""
    whole = prefix(objective.target, bos)
    counted = np.ones(whole.count, bool)
    if document.scored is not None:
        counted = np.asarray(document.scored[whole.scored : whole.stop], bool)
    positions = np.arange(whole.count)
    masks: dict[Column, np.ndarray] = {n: counted & (positions < prefix(n, bos).count) for n in objective.lengths}
    beyond = counted & ~masks[objective.short]
    far = np.asarray(far_repeats(document.ids, objective.short)[whole.scored : whole.stop], bool)
    return {**masks, BEYOND: beyond, FAR: beyond & far}
