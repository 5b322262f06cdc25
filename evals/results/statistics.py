"""Means and proportions with their intervals. Documents are independent of each other; tokens of one document are not.

A mean is a ratio, the sum of the NLL over the number of tokens. Its standard error is that of a ratio estimator
clustered by document (Cochran, Sampling Techniques, 3rd ed., section 6.3), and its interval uses Student's t with one
degree of freedom less than there are documents.

Resampling gives a second interval, which assumes no shape. It draws documents with replacement (Efron and Tibshirani,
An Introduction to the Bootstrap, 1993, chapter 13: percentile intervals). From a single document it draws blocks of
consecutive tokens (the circular block bootstrap of Politis and Romano 1992). That shows how much is chance within this
text, and nothing about other texts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from statistics import NormalDist

import numpy as np

LEVEL = 0.95
PERCENT = f"{LEVEL:.0%}"
"""The level as tables and results.json name it."""


@dataclass(frozen=True)
class Estimate:
    """A mean per token in nats and its interval, which is None with fewer than two documents."""

    mean: float
    low: float | None
    high: float | None


def ratio(sums: Sequence[float], counts: Sequence[float], level: float = LEVEL) -> Estimate:
    """Returns the token-weighted mean ``r = sum S_d / sum m_d`` and its document-clustered t interval.

    ``SE(r) = sqrt(D / (D - 1) * sum (S_d - r m_d)^2) / sum m_d``. Paired differences between two schedules on
    the same tokens use the same formula, with ``S_d`` the difference of the two sums.

    Args:
        sums: per document, the sum over its tokens (nats).
        counts: per document, how many tokens that sum covers, or its weight.
        level: two-sided coverage.
    """
    documents, tokens = len(sums), math.fsum(counts)
    mean = math.fsum(sums) / tokens
    if documents < 2:
        return Estimate(mean, None, None)
    squares = math.fsum((s - mean * m) ** 2 for s, m in zip(sums, counts, strict=True))
    error = math.sqrt(documents / (documents - 1) * squares) / tokens
    half = t_quantile((1 + level) / 2, documents - 1) * error
    return Estimate(mean, mean - half, mean + half)


LEAST_WINDOWS = 6
"""The fewest consecutive windows that give an interval: three blocks of two."""


def blocks_of(windows: int) -> int:
    """Returns into how many blocks consecutive windows are cut: about as many as each then has windows, at least 3."""
    return max(3, round(math.sqrt(windows)))


def consecutive(sums: Sequence[float], counts: Sequence[float], level: float = LEVEL) -> Estimate:
    """Returns the token-weighted mean of the windows of one text in their order, and its interval over blocks of them.

    Neighbouring windows resemble each other, so they are cut into ``b`` blocks of consecutive windows, ``b`` near the
    square root of their number (batch means: Law and Carson 1979; Flegal and Jones 2010 for the root), and the interval
    is Student's t over the blocks, with ``b - 1`` degrees of freedom. It says how much is chance within the text, and
    nothing about others. The windows of a few texts follow one another, so that differences between these texts count
    as differences between blocks.

    Args:
        sums: per window, the sum over its tokens (nats).
        counts: per window, how many tokens that sum covers, or its weight.
        level: two-sided coverage.

    Returns:
        The bounds are None with fewer than :data:`LEAST_WINDOWS` windows.
    """
    windows = len(sums)
    blocks = blocks_of(windows) if windows >= LEAST_WINDOWS else 1
    edges = [windows * block // blocks for block in range(blocks + 1)]
    parts = [slice(first, last) for first, last in pairwise(edges)]
    return ratio([math.fsum(sums[part]) for part in parts], [math.fsum(counts[part]) for part in parts], level)


def wilson(hits: int, trials: int, level: float = LEVEL) -> tuple[float, float]:
    """Returns the score interval of a proportion (Wilson 1927). It stays inside [0, 1] and has a width even at 0 and 1.

    ``(p + z^2/2n +- z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n)``.

    Args:
        hits: how many of the independent ``trials`` succeeded.
        level: two-sided coverage.
    """
    if trials < 1:
        raise ValueError("a proportion of no trials has no interval")
    z = NormalDist().inv_cdf((1 + level) / 2)
    p, square = hits / trials, z * z / trials
    middle, half = p + square / 2, math.sqrt(square * (p * (1 - p) + square / 4))
    low, high = (middle - half) / (1 + square), (middle + half) / (1 + square)
    return (0.0 if hits == 0 else max(low, 0.0)), (1.0 if hits == trials else min(high, 1.0))


def mcnemar(gained: int, lost: int) -> float:
    """Returns the two-sided p value of the exact McNemar test, a sign test on the pairs that differ (McNemar 1947).

    Args:
        gained: pairs of which only the second succeeded.
        lost: pairs of which only the first succeeded.
    """
    pairs, fewer = gained + lost, min(gained, lost)
    tail = sum(math.comb(pairs, k) for k in range(fewer + 1))
    return min(1.0, 2 * tail / 2**pairs)


@lru_cache
def t_quantile(probability: float, degrees: int) -> float:
    """Returns the ``t`` below which Student's distribution with ``degrees`` of freedom has this probability.

    For ``0.5 <= probability < 1``, by bisection on the tail, which is half of a regularised incomplete beta.
    """
    wanted = 2 * (1 - probability)
    low, high = 0.0, 1.0
    while _both_tails(high, degrees) > wanted:
        low, high = high, 2 * high
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if _both_tails(middle, degrees) > wanted else (low, middle)
    return (low + high) / 2


def _both_tails(t: float, degrees: int) -> float:
    """Returns P(|T| > t) = I_x(n/2, 1/2) with x = n / (n + t^2) (Abramowitz and Stegun 26.7.1)."""
    return incomplete_beta(degrees / 2, 0.5, degrees / (degrees + t * t))


def incomplete_beta(a: float, b: float, x: float) -> float:
    """Returns the regularised incomplete beta ``I_x(a, b)`` by its continued fraction (A. and S. 26.5.8)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - incomplete_beta(b, a, 1 - x)
    log_front = a * math.log(x) + b * math.log1p(-x) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    return math.exp(log_front) / a / _continued_fraction(a, b, x)


def _continued_fraction(a: float, b: float, x: float) -> float:
    """Returns ``1 + d_1 / (1 + d_2 / (1 + ...))`` of 26.5.8, from the far end inwards.

    200 terms are plenty below the mean, where it is used.
    """
    value = 1.0
    for n in range(200, 0, -1):
        m = n // 2
        if n % 2:
            d = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            d = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        value = 1 + d / value
    return value


# --- resampling ---

RESAMPLES = 2000
LEAST_BLOCK, MOST_BLOCK = 1024, 4096
"""Tokens of a block, long enough to keep most of the dependence between tokens."""

LEAST_BLOCKS = 8
"""The fewest blocks that give an interval."""

Bounds = tuple[float, float]


def by_document(sums: Sequence[float], counts: Sequence[float], seed: int, level: float = LEVEL) -> Bounds | None:
    """Returns percentiles of ``sum S / sum m`` over resampled documents; None with fewer than two.

    Args:
        sums: per document, the sum over its tokens.
        counts: per document, how many tokens that sum covers, or its weight.
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
    """Returns the tokens of a block: a thirty-second of the text, within limits; None if the text is too short."""
    block = min(MOST_BLOCK, max(LEAST_BLOCK, tokens // 32))
    return block if tokens >= LEAST_BLOCKS * block else None


def by_block(values: np.ndarray, seed: int, level: float = LEVEL) -> Bounds | None:
    """Returns percentiles of the mean over resampled blocks of consecutive values; None if there are too few.

    The values form a circle, so that every value is in the same number of blocks.
    """
    block = block_of(len(values))
    if block is None:
        return None
    whole = np.concatenate([[0.0], np.cumsum(np.concatenate([values, values[:block]]), dtype=np.float64)])
    sums = whole[block:] - whole[:-block]  # one per block start; the last equals the first
    generator = np.random.default_rng(seed)
    drawn = generator.integers(len(values), size=(RESAMPLES, math.ceil(len(values) / block)))
    return _percentiles(sums[drawn].mean(1) / block, level)


def _percentiles(found: np.ndarray, level: float) -> Bounds:
    low, high = np.quantile(found, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
