"""Ranges of tokens, each from its first token to the one after its last."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np


def ranges_of(marks: np.ndarray) -> np.ndarray:
    """Returns where marks begin and end, int64 [ranges, 2]."""
    return np.flatnonzero(np.diff(np.concatenate([[0], marks.astype(np.int8), [0]]))).reshape(-1, 2)


def within(ranges: Iterable[tuple[int, int]] | None, first: int, size: int) -> list[tuple[int, int]] | None:
    """Returns the parts of ranges among ``size`` tokens from ``first`` on, counted from there."""
    if ranges is None:
        return None
    inside = ((max(start - first, 0), min(stop - first, size)) for start, stop in ranges)
    return [(start, stop) for start, stop in inside if start < stop]


def kept(values: np.ndarray, ranges: Iterable[tuple[int, int]], first: int) -> np.ndarray:
    """Returns the values of the tokens from ``first`` on, with NaN outside the ranges of tokens."""
    found = np.full_like(values, np.nan)
    for start, stop in ranges:
        here = slice(max(start - first, 0), max(stop - first, 0))
        found[here] = values[here]
    return found
