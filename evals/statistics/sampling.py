"""Estimates over documents where there are enough, else over their windows in the order of the text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from .intervals import LEVEL, Estimate, consecutive, ratio

ENOUGH = 8
"""The fewest documents whose interval is over documents although they have several windows each."""


def rests_on_windows(windows: Sequence[int]) -> bool:
    """Whether intervals are over windows: of fewer than :data:`ENOUGH` documents, one with several.

    Args:
        windows: per document, how many there are.
    """
    return len(windows) < ENOUGH and sum(windows) > len(windows)


def grouped(values: Sequence[float], windows: Sequence[int]) -> list[float]:
    """Returns the sums over the windows of each document; the values where ``windows`` is empty."""
    if not windows:
        return list(values)
    return [sum(values[start:stop]) for start, stop in pairwise(accumulate(windows, initial=0))]


def estimate(
    sums: Sequence[float], counts: Sequence[float], windows: Sequence[int] = (), level: float = LEVEL
) -> Estimate:
    """Returns the token-weighted mean and its interval, over documents or over windows.

    Args:
        sums: per window, the sum over its tokens (nats).
        counts: per window, how many tokens that sum covers, or its weight; a window without any is left out.
        windows: per document, how many windows there are; empty for one of each.
        level: two-sided coverage.
    """
    if rests_on_windows(windows):
        pairs = [(one, count) for one, count in zip(sums, counts, strict=True) if count]
        of = f"{len(pairs)} windows"
        found = consecutive([one for one, _ in pairs], [count for _, count in pairs], level, of)
        if found.low is not None:
            return found
    return ratio(grouped(sums, windows), grouped(counts, windows), level)
