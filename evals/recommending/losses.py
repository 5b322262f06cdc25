"""The objective of candidates, and their paired differences, from the stored losses of every token."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..metrics.stored import Stored
from ..statistics.intervals import LEVEL, Average, Estimate


def estimate(stored: Stored, weights: Mapping[int, float], one: str, other: str = "", level: float = LEVEL) -> Estimate:
    """Returns a weighted mean of losses (nats per token) at several lengths, with its interval.

    The weight of each length is divided by the number of its tokens. If windows have equal sizes, the result is
    therefore the weighted mean of the lengths' means.

    Args:
        stored: the windows, on which every given candidate was measured.
        weights: the weights by length; they sum to 1.
        one: the label of a candidate, or of truncation.
        other: a label whose losses on the same tokens are subtracted; "" for none.
        level: the interval's two-sided coverage.

    Returns:
        The estimate; its mean is NaN if no token counts.
    """
    sums, shares = _weighted(stored, weights, one, other)
    return stored.estimate(sums, shares, level) if any(shares) else Estimate(float("nan"), None, None)


def difference(stored: Stored, weights: Mapping[int, float], one: str, other: str, level: float) -> Average:
    """Returns a paired difference in the average document, from which verdicts are drawn; see :func:`estimate`."""
    return stored.average(*_weighted(stored, weights, one, other), level)


def _weighted(stored: Stored, weights: Mapping[int, float], one: str, other: str) -> tuple[list[float], list[float]]:
    sums, shares = np.zeros(1), np.zeros(1)
    for length, weight in weights.items():
        totals = stored.totals(one, length)
        if other:
            totals = totals.minus(stored.totals(other, length))
        scale = weight / max(1, sum(totals.counts))
        sums, shares = sums + scale * np.array(totals.sums), shares + scale * np.array(totals.counts)
    return sums.tolist(), shares.tolist()
