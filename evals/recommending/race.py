"""Successive halving (Jamieson and Talwalkar, AISTATS 2016): many candidates on little text, then the best on more.

Every second document is held out, and the remaining documents are the text of the race. Each round doubles the measured
share of that text, and measures all remaining candidates on the same windows. The best third of the candidates
survives. Further candidates that are not significantly worse than the best one also survive, best first, until half of
all candidates are kept. If these shares would feed more than a quarter of the tokens of the full grid (every candidate
on all the text), which happens with few documents, both shares are reduced.

The decision is made on the held-out text, which was not used to choose candidates. (Ten to nineteen documents are both
the race's and the held-out text; then the decision's intervals hold for every pair of candidates.) The decision names
the simplest schedule that is shown to be good enough, and the schedules that may be better.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, permutations

import numpy as np

from ..metrics.stored import Stored, part_of
from ..statistics.intervals import CONCLUSIVE, LEVEL, Average, Estimate, familywise
from .options import Weights

SHARES = (1 / 10, 1 / 4, 1 / 2, 1.0)
"""The cumulative share of the race's text that is measured after each round."""

MOST = (1 / 2, 2 / 5, 1 / 3, 1 / 4, 1 / 6)
"""Options for the largest share of candidates that survives a round. The first option that keeps the total cost within
:data:`QUARTER` is used, or else the last one. Two thirds of this share always survive."""

QUARTER = 1 / 4
"""The most tokens to feed, as a share of measuring every candidate on the full text."""

FINALISTS = 4
"""The number of candidates that the race selects for the held-out text."""

LEAST_DOCUMENTS = 4
"""The fewest documents for which whole documents are held out; with fewer, every second window is held out."""

LEARNING = 6
"""The fewest documents that a search keeps to learn from, if more would leave too few for a verdict."""

_GOLDEN = (math.sqrt(5) - 1) / 2

Measure = Callable[[Sequence[str], Sequence[int]], Stored]
"""A function that measures candidates on windows, and returns all losses so far."""


@dataclass(frozen=True)
class Round:
    """A round of the race.

    Attributes:
        candidates: the measured candidates.
        windows: the windows of this round.
        kept: the survivors, best first.
    """

    candidates: list[str]
    windows: list[int]
    kept: list[str]


def split_windows(windows: Sequence[int], search: bool) -> tuple[list[int], list[int]]:
    """Splits windows into race and held-out windows: every second document, or window, is held out.

    If half of the documents would be too few for a verdict, and all of them are enough, or if there is only one window,
    both parts have all of them.
    A search must not see the held-out documents; so with one, more of them are held out, down to :data:`LEARNING`.

    Args:
        windows: the number of windows per document.
        search: whether a search learns from the windows of the race.
    """
    documents = len(windows)
    if sum(windows) == 1 or (not search and CONCLUSIVE <= documents < 2 * CONCLUSIVE):
        everything = list(range(sum(windows)))
        return everything, everything
    if documents >= LEAST_DOCUMENTS:
        parts = [list(range(*edge)) for edge in pairwise(accumulate(windows, initial=0))]
    else:
        parts = [[number] for number in range(sum(windows))]
    held = set(range(0, len(parts), 2))
    if search and documents >= CONCLUSIVE:
        further = min(CONCLUSIVE, documents - LEARNING) - len(held)
        held |= set(range(1, 2 * further, 2))
    return (
        [number for n, part in enumerate(parts) if n not in held for number in part],
        [number for n, part in enumerate(parts) if n in held for number in part],
    )


def slices(windows: Sequence[int]) -> list[list[int]]:
    """Returns the new windows of each round, spread over the text, in ascending order.

    Sorting the windows by the golden ratio's multiples modulo 1 spreads out the windows of every round.
    """
    spread = sorted(windows, key=lambda window: (windows.index(window) + 1) * _GOLDEN % 1)
    ends = sorted({max(1, round(share * len(windows))) for share in SHARES})
    return [sorted(spread[start:stop]) for start, stop in pairwise([0, *ends])]


def expected(candidates: int, always: int, race: Sequence[int], held_out: Sequence[int], most: float) -> int:
    """Returns the largest number of windows to feed, assuming that all candidates have distinct tables.

    If the race reads the full text, the decision feeds only as-is again. Truncation is not counted.

    Args:
        candidates, always: the number of all candidates, and of those that always stay to the end.
        race, held_out: the windows of the race, and the held-out windows.
        most: the largest share of candidates that survives a round.
    """
    left = candidates
    fed = 0
    for part in slices(race):
        fed += left * len(part)
        left = min(left, math.ceil(most * left) + always)
    decided = 1 if race == held_out else min(candidates, FINALISTS + always)
    return fed + decided * len(held_out)


def share_kept(
    candidates: int, always: int, race: Sequence[int], held_out: Sequence[int], further_windows: float = 0.0
) -> float:
    """Returns the largest share of candidates that survives a round; see :data:`MOST`.

    Args:
        further_windows: tokens to feed outside the race and the comparison, as a number of windows.
    """
    limit = QUARTER * candidates * len({*race, *held_out}) - further_windows
    fits = (share for share in MOST if expected(candidates, always, race, held_out, share) <= limit)
    return next(fits, MOST[-1])


def run_race(
    candidates: Sequence[str],
    weights: Weights,
    windows: Sequence[int],
    always: Sequence[str],
    most: float,
    measure: Measure,
) -> list[Round]:
    """Runs the rounds of the race.

    Args:
        candidates: the candidates, simplest first.
        weights: the weights of the objective, by length.
        windows: the windows of the race.
        always: candidates that stay to the end, such as the unchanged model.
        most: the largest share of candidates that survives a round.
        measure: the function that measures candidates.

    Returns:
        The rounds; the last one keeps the best :data:`FINALISTS` candidates.
    """
    left = list(candidates)
    seen = []
    rounds = []
    parts = slices(windows)
    for number, part in enumerate(parts, 1):
        seen = sorted([*seen, *part])
        losses = part_of(measure(left, part), seen)
        kept = survivors(losses, weights, left, most)
        if number == len(parts):
            kept = ranked(losses, weights, left)[:FINALISTS]
        rounds.append(Round(left, part, kept))
        left = [candidate for candidate in candidates if candidate in kept or candidate in always]
    return rounds


def ranked(losses: Stored, weights: Weights, candidates: Sequence[str]) -> list[str]:
    """Returns candidates sorted by their objective on shared windows; equal ones keep their order."""
    return sorted(candidates, key=lambda each: estimate(losses, weights, each).mean)


def survivors(losses: Stored, weights: Weights, candidates: Sequence[str], most: float) -> list[str]:
    """Returns the survivors of a round, best first.

    Args:
        losses: the windows that all candidates were measured on.
        weights: the weights of the objective, by length.
        candidates: the candidates, simplest first.
        most: the largest share of candidates that survives. Two thirds of this share always survive. The remaining
            third survives unless paired intervals, which hold simultaneously, show a candidate to be worse than the
            best one.
    """
    ordered = ranked(losses, weights, candidates)
    least = math.ceil(2 / 3 * most * len(ordered))
    limit = math.ceil(most * len(ordered))
    level = familywise(len(ordered) - 1)
    kept = ordered[:least]
    for each in ordered[least:limit]:
        low = estimate(losses, weights, each, ordered[0], level).low
        if low is None or low <= 0:
            kept.append(each)
    return kept


@dataclass(frozen=True)
class Decision:
    """The decision among the finalists.

    Attributes:
        chosen: the simplest finalist that is shown to be as good as all other finalists; if there is none, the finalist
            with the lowest loss on all windows that the finalists share.
        open: the finalists that may be better than the chosen one by more than the tolerance; empty if the text
            suffices for a decision.
        equal: further finalists that are shown to be as good as all other finalists.
    """

    chosen: str
    open: list[str]
    equal: list[str]


def decide(
    held_out: Stored, everything: Stored, weights: Weights, finalists: Sequence[str], tolerance: float, level: float
) -> Decision:
    """Decides among the finalists.

    A finalist is good enough if the paired intervals show that its objective is at most ``tolerance`` above the
    objective of every other finalist in the average document, and if it is so over all tokens, too. The intervals hold
    simultaneously for all pairs of finalists (Sidak, JASA 62, 1967), or for all pairs of candidates if the same text
    selected the finalists. The simplest finalist that is good enough is chosen.

    Args:
        held_out: the held-out windows.
        everything: all windows that every finalist was measured on.
        weights: the weights of the objective, by length.
        finalists: the finalists, simplest first.
        tolerance: nats per token.
        level: the level of each interval, such that all intervals hold together at 95%.
    """
    behind: dict[str, list[str]] = {finalist: [] for finalist in finalists}
    for one, other in permutations(finalists, 2):
        change = difference(held_out, weights, one, other, level)
        if change.high is None or max(change.high, change.per_token) > tolerance:
            behind[one].append(other)
    enough = [finalist for finalist in finalists if not behind[finalist]]
    chosen = enough[0] if enough else ranked(everything, weights, finalists)[0]
    return Decision(chosen, behind[chosen], [each for each in enough if each != chosen])


# --- The objective of candidates, and their paired differences, from the stored losses of every token


def estimate(stored: Stored, weights: Weights, one: str, other: str = "", level: float = LEVEL) -> Estimate:
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
    return stored.estimate(sums, shares, level) if any(shares) else Estimate(math.nan, None, None)


def difference(stored: Stored, weights: Weights, one: str, other: str, level: float) -> Average:
    """Returns a paired difference in the average document, from which verdicts are drawn; see :func:`estimate`."""
    return stored.average(*_weighted(stored, weights, one, other), level)


def _weighted(stored: Stored, weights: Weights, one: str, other: str) -> tuple[list[float], list[float]]:
    sums = np.zeros(1)
    shares = np.zeros(1)
    for length, weight in weights.items():
        totals = stored.totals(one, length)
        if other:
            totals = totals.minus(stored.totals(other, length))
        scale = weight / max(1, sum(totals.counts))
        sums = sums + scale * np.array(totals.sums)
        shares = shares + scale * np.array(totals.counts)
    return sums.tolist(), shares.tolist()
