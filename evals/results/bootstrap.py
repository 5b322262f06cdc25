"""Intervals by resampling, beside those of a formula: they assume no shape, and check it.

Documents are drawn with replacement, because tokens of one document are not independent (Efron and Tibshirani, An
Introduction to the Bootstrap, 1993, chapter 13: percentile intervals). Of a single document, blocks of consecutive
tokens are drawn instead (the circular block bootstrap of Politis and Romano 1992), which says how much chance there is
within that text, and nothing of other texts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from .statistics import LEVEL

RESAMPLES = 2000
LEAST_BLOCK, MOST_BLOCK = 1024, 4096
"""Tokens of a block: long enough that what hangs together mostly stays together."""

LEAST_BLOCKS = 8
"""A text of fewer blocks has no interval: so few would say nothing."""

Bounds = tuple[float, float]


def by_document(sums: Sequence[float], counts: Sequence[float], seed: int, level: float = LEVEL) -> Bounds | None:
    """Percentiles of ``sum S / sum m`` over resampled documents; None where there are fewer than two.

    Args:
        sums: per document, the sum over its tokens.
        counts: per document, how many tokens (or how much weight) that sum covers.
        seed: the same seed draws the same documents, whatever the sums.
    """
    documents = len(sums)
    if documents < 2:
        return None
    total, weight = np.asarray(sums, np.float64), np.asarray(counts, np.float64)
    generator = np.random.default_rng(seed)
    found = np.empty(RESAMPLES)
    step = max(1, 2**22 // documents)
    for start in range(0, RESAMPLES, step):
        drawn = generator.integers(documents, size=(min(step, RESAMPLES - start), documents))
        found[start : start + step] = total[drawn].sum(1) / weight[drawn].sum(1)
    return _percentiles(found, level)


def block_of(tokens: int) -> int | None:
    """Tokens of a block for a text of so many: a thirty-second of it, within limits; None for too short a text."""
    block = min(MOST_BLOCK, max(LEAST_BLOCK, tokens // 32))
    return block if tokens >= LEAST_BLOCKS * block else None


def by_block(values: np.ndarray, seed: int, level: float = LEVEL) -> Bounds | None:
    """Percentiles of the mean over resampled blocks of consecutive values; None for too few of them.

    The values are a circle, so that each is in as many blocks as any other.
    """
    block = block_of(len(values))
    if block is None:
        return None
    whole = np.concatenate([[0.0], np.cumsum(np.concatenate([values, values[:block]]), dtype=np.float64)])
    sums = whole[block:] - whole[:-block]  # of the block that starts at each value, and once more at the first
    generator = np.random.default_rng(seed)
    drawn = generator.integers(len(values), size=(RESAMPLES, math.ceil(len(values) / block)))
    return _percentiles(sums[drawn].mean(1) / block, level)


def _percentiles(found: np.ndarray, level: float) -> Bounds:
    low, high = np.quantile(found, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
