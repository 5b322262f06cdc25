"""Means and proportions with their intervals. Documents are independent of each other; tokens of one document are not.

A mean is the ratio of the summed NLL and the number of tokens. Its interval is a Student's t interval over documents,
corrected for few documents, several genres and unequal sizes (docs/intervals.md reports its coverage). For one or few
texts, the interval is over blocks of consecutive windows. Such an interval reflects chance within these texts, and does
not generalise to different texts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, pairwise
from statistics import NormalDist
from typing import Self

import numpy as np

LEVEL = 0.95
PERCENT = f"{LEVEL:.0%}"
"""The level as text, for tables and results.json."""

DOCUMENTS = "documents"
"""The name of the sampling unit of intervals from :func:`ratio`."""

_MANY = 1000
"""Sums of more values are rounded as numpy does."""

LEAST_DOCUMENTS = 5
"""The fewest documents for an interval; with fewer, the interval would be too wide to be informative."""

CONCLUSIVE = 10
"""The fewest documents for a conclusion."""

LEANING = 5
"""How often the correction for skewness counts in a verdict. The skewness of few documents is mostly too small, above
all where intervals are wide, so counting it once is too optimistic (docs/intervals.md has the simulation)."""


def familywise(comparisons: int) -> float:
    """Returns the level of individual intervals whose simultaneous level is :data:`LEVEL` (Sidak, JASA 62, 1967)."""
    return LEVEL ** (1 / max(1, comparisons))


@dataclass(frozen=True)
class Estimate:
    """A mean per token in nats and the bounds of its interval, which are None if there is too little data.

    ``over`` names the interval's sampling unit, such as "documents".
    """

    mean: float
    low: float | None
    high: float | None
    over: str | None = None

    @property
    def sign(self) -> int | None:
        """-1 if the interval is below zero, 1 if above, 0 if it contains zero, and None if there is no interval."""
        if self.low is None or self.high is None:
            return None
        return (self.low > 0) - (self.high < 0)

    def __neg__(self) -> Self:
        """Returns the estimate for the negated values."""
        if self.low is None or self.high is None:
            return replace(self, mean=-self.mean)
        return replace(self, mean=-self.mean, low=-self.high, high=-self.low)

    def within(self, least: float, most: float = math.inf) -> Estimate:
        """Clips the interval to the possible values, but never past the mean."""
        if self.low is None or self.high is None:
            return self
        low = max(self.low, min(least, self.mean))
        high = min(self.high, max(most, self.mean))
        return replace(self, low=low, high=high)


def ratio(sums: Sequence[float], counts: Sequence[float], level: float = LEVEL) -> Estimate:
    """Returns the token-weighted mean ``r = sum S_d / sum m_d`` of independent documents and its interval.

    With the shares ``h_d = m_d / sum m`` and ``H = sum h^2``, the variance is ``sum (h_d e_d)^2 / (1 - 2 h_d + H)``,
    where ``e_d = S_d / m_d - r``. This is CR2 of Bell and McCaffrey (Survey Methodology 28, 2002), which is unbiased if
    all documents have the same variance, and is used with the degrees of freedom of the same paper. For documents of
    equal size, the variance is ``s^2 / D`` with ``D - 1`` degrees of freedom.

    If the mean has the skewness ``g``, a t statistic is biased by ``g (1 + 2 t^2) / 6`` in the opposite direction
    (Johnson, JASA 73, 1978; Hall, The Bootstrap and Edgeworth Expansion, 1992, section 2.6). A few documents of a
    different genre, or with large losses, cause such skewness. Therefore the interval's side towards the long tail is
    extended by this amount. The opposite side is not shortened, because an estimate of the skewness from few documents
    is poor, and mostly too small.

    Paired differences between two schedules on the same tokens use the same formula; then ``S_d`` is the difference of
    the two sums.

    Args:
        sums: per document, the sum over its tokens (nats).
        counts: per document, the number of tokens in that sum, or the document's weight.
        level: the interval's two-sided coverage.

    Returns:
        The estimate; its bounds are None with fewer than :data:`LEAST_DOCUMENTS` documents.
    """
    return _student(sums, counts, level, least=LEAST_DOCUMENTS, leaning=1, over=DOCUMENTS)


@dataclass(frozen=True)
class Average(Estimate):
    """The mean over documents of each document's mean difference, in nats: the difference in the average document.

    Attributes:
        per_token: the mean over all tokens, in which a long document weighs more.
        agreeing: the number of documents whose difference has the sign of ``mean``.
        documents: the number of documents.
    """

    per_token: float = 0.0
    agreeing: int = 0
    documents: int = 0

    @property
    def sign(self) -> int | None:
        """As for an estimate, but 0 also if the mean over all tokens has the opposite sign, which leaves it open."""
        found = super().sign
        return 0 if found and found * self.per_token < 0 else found

    def __neg__(self) -> Self:
        """Returns the average of the negated differences."""
        return replace(super().__neg__(), per_token=-self.per_token)


def average(sums: Sequence[float], counts: Sequence[float], level: float = LEVEL) -> Average:
    """Returns the difference in the average document, from which all verdicts are drawn; NaN without any token.

    The interval is that of :func:`ratio` for documents of equal weight, Student's t with ``D - 1`` degrees of freedom,
    but the correction for skewness counts :data:`LEANING` times. It has no bounds with fewer than :data:`CONCLUSIVE`
    documents.

    Args:
        sums: per document, the sum of its tokens' differences (nats).
        counts: per document, the number of its tokens; documents without tokens are ignored.
        level: the interval's two-sided coverage.
    """
    means = [s / m for s, m in zip(sums, counts, strict=True) if m]
    if not means:
        return Average(math.nan, None, None)
    found = _student(means, [1] * len(means), level, least=CONCLUSIVE, leaning=LEANING)
    agreeing = sum(each * found.mean > 0 for each in means)
    per_token = math.fsum(sums) / math.fsum(counts)
    return Average(found.mean, found.low, found.high, None, per_token, agreeing, len(means))


def _student(
    sums: Sequence[float], counts: Sequence[float], level: float, least: int, leaning: int, over: str | None = None
) -> Estimate:
    sizes = np.array(counts, float)
    losses = np.array(sums, float)
    tokens = _sum(sizes)
    mean = _sum(losses) / tokens
    counted = sizes != 0
    documents = int(counted.sum())
    if documents < least:
        return Estimate(mean, None, None)
    parts = sizes[counted] / tokens
    square = _sum(parts * parts)
    errors = (losses[counted] - mean * sizes[counted]) / tokens
    error = math.sqrt(_sum(errors * errors / (1 - 2 * parts + square)))
    usual = t_quantile((1 + level) / 2, documents - 1)
    wide = max(usual, t_quantile((1 + level) / 2, _degrees(parts, square)))
    lean = leaning * _skewness(errors, parts, square) * (1 + 2 * usual**2) / 6
    return Estimate(mean, mean - max(wide, usual - lean) * error, mean + max(wide, usual + lean) * error, over)


def _sum(values: np.ndarray) -> float:
    """Returns the sum, exactly rounded unless there are many values."""
    return float(values.sum()) if len(values) > _MANY else math.fsum(values.tolist())


def _degrees(parts: np.ndarray, square: float) -> float:
    """Returns Bell and McCaffrey's degrees of freedom: ``tr(M)^2 / tr(M^2)``, rounded to two decimals, at least 1.

    ``M_ij = sqrt(w_i w_j) (1[i = j] - h_i - h_j + H)`` with ``w_i = h_i^2 / (1 - 2 h_i + H)``. The estimated variance
    is a quadratic form with the eigenvalues of ``M``.
    """
    weights = parts * parts / (1 - 2 * parts + square)
    zeroth, first, second = (_sum(weights * parts**k) for k in range(3))
    off = (square * zeroth) ** 2 + 2 * zeroth * second + 2 * first**2 - 4 * square * zeroth * first
    diagonal = _sum(weights * weights * (1 + 2 * square - 4 * parts))
    return max(1.0, round(square**2 / (off + diagonal), 2))


def _skewness(errors: np.ndarray, parts: np.ndarray, square: float) -> float:
    """Returns the skewness of the mean: the weighted and bias-adjusted skewness of the documents, times a decay.

    With ``n = 1 / H`` effective documents, the usual bias adjustment is ``sqrt(n (n - 1)) / (n - 2)``. For documents of
    equal size, the skewness of the mean decays as ``1 / sqrt(n)``.
    """
    effective = 1 / square
    second, third = (_sum(parts * (errors / parts) ** k) for k in (2, 3))
    if not second or effective <= 2:
        return 0.0
    adjusted = third / second**1.5 * math.sqrt(effective * (effective - 1)) / max(1.0, effective - 2)
    return adjusted * _sum(parts**3) / square**1.5


LEAST_WINDOWS = 8
"""The fewest consecutive windows for an interval; with fewer, the three blocks would be too correlated."""


def blocks_of(windows: int) -> int:
    """Returns the number of blocks for a number of consecutive windows: ¾ of the number's square root, at least 3."""
    return max(3, round(0.75 * math.sqrt(windows)))


def consecutive(sums: Sequence[float], counts: Sequence[float], level: float = LEVEL, of: str = "windows") -> Estimate:
    """Returns the token-weighted mean of one text's consecutive windows, and its interval over blocks of windows.

    Neighbouring windows resemble each other. So the windows are grouped into ``b`` blocks of consecutive windows, and
    the interval is a Student's t interval over the blocks, with ``b - 1`` degrees of freedom (batch means; Law and
    Carson, Operations Research 27, 1979). The number of blocks grows as the square root of the number of windows
    (Flegal and Jones, Annals of Statistics 38, 2010). The interval reflects chance within the text, and does not
    generalise to different texts. The windows of several texts are concatenated, so that differences between texts
    count as differences between blocks.

    Args:
        sums: per window, the sum over its tokens (nats).
        counts: per window, the number of tokens in that sum, or the window's weight.
        level: the interval's two-sided coverage.
        of: the name of the windows in :attr:`Estimate.over`.

    Returns:
        The estimate; its bounds are None with fewer than :data:`LEAST_WINDOWS` windows.
    """
    windows = len(sums)
    blocks = blocks_of(windows) if windows >= LEAST_WINDOWS else 1
    edges = [windows * block // blocks for block in range(blocks + 1)]
    total = []
    tokens = []
    for first, last in pairwise(edges):
        total.append(math.fsum(sums[first:last]))
        tokens.append(math.fsum(counts[first:last]))
    return _student(total, tokens, level, least=2, leaning=0, over=f"{of} in {blocks} blocks")


def wilson(hits: float, trials: float, level: float = LEVEL) -> tuple[float, float]:
    """Returns the score interval of a proportion (Wilson 1927), which is inside [0, 1] and not empty even at 0 and 1.

    The bounds are ``(p + z^2/2n +- z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n)``.

    Args:
        hits: the number of successes in independent ``trials``, or the sum of the trials' scores in [0, 1].
        level: the interval's two-sided coverage.
    """
    if trials < 1:
        raise ValueError("a proportion needs at least one trial")
    z = NormalDist().inv_cdf((1 + level) / 2)
    p = hits / trials
    square = z * z / trials
    middle = p + square / 2
    half = math.sqrt(square * (p * (1 - p) + square / 4))
    low = max(0.0, middle - half) / (1 + square) if hits else 0.0
    high = min(1.0, (middle + half) / (1 + square)) if hits < trials else 1.0
    return low, high


@lru_cache(maxsize=8192)
def t_quantile(probability: float, degrees: float) -> float:
    """Returns Student's t quantile for a probability and degrees of freedom.

    The probability must satisfy ``0.5 <= probability < 1``. The quantile is found by bisection on the tail probability,
    which is half of a regularised incomplete beta function.
    """
    wanted = 2 * (1 - probability)
    low = 0.0
    high = 1.0
    while _both_tails(high, degrees) > wanted:
        low = high
        high *= 2
    middle = (low + high) / 2
    while low < middle < high:
        if _both_tails(middle, degrees) > wanted:
            low = middle
        else:
            high = middle
        middle = (low + high) / 2
    return middle


def _both_tails(t: float, degrees: float) -> float:
    """Returns P(|T| > t) = I_x(n/2, 1/2) with x = n / (n + t^2) (Abramowitz and Stegun 26.7.1)."""
    return incomplete_beta(degrees / 2, 0.5, degrees / (degrees + t * t))


def incomplete_beta(a: float, b: float, x: float) -> float:
    """Returns the regularised incomplete beta ``I_x(a, b)``, by its continued fraction (A. and S. 26.5.8)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - incomplete_beta(b, a, 1 - x)
    log_front = a * math.log(x) + b * math.log1p(-x) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    return math.exp(log_front) / a / _continued_fraction(a, b, x)


def _continued_fraction(a: float, b: float, x: float) -> float:
    """Returns ``1 + d_1 / (1 + d_2 / (1 + ...))`` of 26.5.8, computed from the last term to the first.

    200 terms suffice for ``x`` below the mean, the only values that :func:`incomplete_beta` passes.
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


# --- Documents or windows ---

ENOUGH = 8
"""The fewest documents for an interval over documents even if they have several windows."""


def rests_on_windows(windows: Sequence[int]) -> bool:
    """Returns whether intervals are over windows instead of documents.

    This is the case with fewer than :data:`ENOUGH` documents if at least one of them has several windows.

    Args:
        windows: the number of windows per document.
    """
    return len(windows) < ENOUGH and sum(windows) > len(windows)


def grouped(values: Sequence[float], windows: Sequence[int]) -> list[float]:
    """Sums the values over each document's windows; returns them unchanged if each has one, or ``windows`` is empty."""
    if len(windows) in (0, len(values)):
        return list(values)
    return [sum(values[start:stop]) for start, stop in pairwise(accumulate(windows, initial=0))]


def estimate(
    sums: Sequence[float], counts: Sequence[float], windows: Sequence[int] = (), level: float = LEVEL
) -> Estimate:
    """Returns the token-weighted mean and its interval, over documents or over windows.

    Args:
        sums: per window, the sum over its tokens (nats).
        counts: per window, the number of tokens in that sum, or the window's weight; windows with a count of 0 are
            ignored.
        windows: the number of windows per document; empty if each document has one.
        level: the interval's two-sided coverage.
    """
    if rests_on_windows(windows):
        pairs = [(one, count) for one, count in zip(sums, counts, strict=True) if count]
        found = consecutive(*zip(*pairs), level=level, of=f"{len(pairs)} windows")
        if found.low is not None:
            return found
    return ratio(grouped(sums, windows), grouped(counts, windows), level)


# --- Coverage ---

FEW = {5: 0.857, 6: 0.883, 7: 0.907, 8: 0.927}
"""The lowest coverage of the 95% interval, by number of documents; from 9 documents on, it is 93% or more."""


def over_documents(documents: int) -> str:
    """Describes the coverage of an interval over few documents, or why there is none; "" for enough documents."""
    if documents < LEAST_DOCUMENTS:
        return f"needs {LEAST_DOCUMENTS} documents"
    if documents not in FEW:
        return ""
    share = int(100 * FEW[documents])
    return f"covers {share}% or more in our simulations of {documents} documents (docs/intervals.md)"


OVER_BLOCKS = "covers 93% or more in our simulations of neighbouring windows that correlate by up to 0.5"
"""The coverage of an interval over blocks of windows (docs/intervals.md)."""
