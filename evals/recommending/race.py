"""Successive halving (Jamieson and Talwalkar, AISTATS 2016): many candidates on little text, then the best on more.

Every second document is held out; the others are the text of the race. Each round doubles the measured share of that
text, and measures all remaining candidates on the same windows. The best third survives, and so do others that are not
significantly worse than the best, best first, up to half of all. If that would feed more than a quarter of the tokens
of the full grid (every candidate on all the text), as with few documents, a smaller share survives, two thirds of it in
any case.

The decision rests on the held-out text, which chose no candidate: it names the simplest schedule that is shown to be
good enough, and those that may be better.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, permutations

from ..statistics.intervals import LEVEL
from .losses import CandidateLosses

SHARES = (1 / 8, 1 / 4, 1 / 2, 1.0)
"""The cumulative share of the race's text after each round."""

MOST = (1 / 2, 2 / 5, 1 / 3, 1 / 4, 1 / 6)
"""The largest share of candidates that survives a round: the first of these that keeps the total cost within
:data:`QUARTER`. Two thirds of it survive in any case."""

QUARTER = 1 / 4
"""The most tokens to feed, as a share of measuring every candidate on the full text."""

FINALISTS = 4
"""The number of finalists from the race, measured on the held-out text."""

LEAST_DOCUMENTS = 4
"""The fewest documents to hold out by document; with fewer, every second window is held out."""

_GOLDEN = (math.sqrt(5) - 1) / 2

Measure = Callable[[Sequence[str], Sequence[int]], CandidateLosses]
"""Measures candidates on windows, and returns all losses so far."""


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


def split_windows(windows: Sequence[int]) -> tuple[list[int], list[int]]:
    """Splits windows into race and held-out windows: every second document, or window, is held out.

    Args:
        windows: the number of windows per document.
    """
    if len(windows) >= LEAST_DOCUMENTS:
        parts = [list(range(*edge)) for edge in pairwise(accumulate(windows, initial=0))]
    else:
        parts = [[number] for number in range(sum(windows))]
    return (
        [number for part in parts[1::2] for number in part],
        [number for part in parts[::2] for number in part],
    )


def slices(windows: Sequence[int]) -> list[list[int]]:
    """Returns the new windows of each round, spread over the text, ascending.

    Takes windows in the order of the golden ratio's multiples modulo 1, which spreads out those of every round.
    """
    spread = sorted(windows, key=lambda window: (windows.index(window) + 1) * _GOLDEN % 1)
    ends = sorted({max(1, round(share * len(windows))) for share in SHARES}) if windows else []
    return [sorted(spread[start:stop]) for start, stop in pairwise([0, *ends])]


def expected(candidates: int, always: int, race: Sequence[int], held_out: Sequence[int], most: float) -> int:
    """Returns the largest number of windows to feed, if all candidates have distinct tables.

    Args:
        candidates, always: the number of candidates, and of those that always stay to the end.
        race, held_out: the windows of the race, and the held-out ones.
        most: the largest share that survives a round.
    """
    left, fed = candidates, 0
    for part in slices(race):
        fed += left * len(part)
        left = min(left, math.ceil(most * left) + always)
    return fed + min(candidates, FINALISTS + always) * len(held_out)


def share_kept(
    candidates: int, always: int, race: Sequence[int], held_out: Sequence[int], besides: float = 0.0
) -> float:
    """Returns the largest share of candidates that survives a round; see :data:`MOST`.

    Args:
        besides: other tokens to feed, in windows.
    """
    limit = QUARTER * candidates * len({*race, *held_out}) - besides
    fits = (share for share in MOST if expected(candidates, always, race, held_out, share) <= limit)
    return next(fits, MOST[-1])


def run_race(
    candidates: Sequence[str], windows: Sequence[int], always: Sequence[str], most: float, measure: Measure
) -> list[Round]:
    """Runs the rounds.

    Args:
        candidates: the candidates, simplest first.
        windows: the text of the race.
        always: candidates that stay to the end, such as the unchanged model.
        most: the largest share that survives a round.

    Returns:
        The rounds; the last one keeps the best :data:`FINALISTS`.
    """
    left, seen, rounds = list(candidates), [], []
    parts = slices(windows)
    for number, part in enumerate(parts, 1):
        losses = measure(left, part)
        seen = sorted([*seen, *part])
        kept = survivors(losses, left, seen, most)
        if number == len(parts):
            kept = ranked(losses, left, seen)[:FINALISTS]
        rounds.append(Round(left, part, kept))
        left = [candidate for candidate in candidates if candidate in kept or candidate in always]
    return rounds


def ranked(losses: CandidateLosses, candidates: Sequence[str], within: Sequence[int]) -> list[str]:
    """Returns candidates sorted by their objective on shared windows; ties: first."""
    return sorted(candidates, key=lambda each: losses.mean(each, within))


def survivors(losses: CandidateLosses, candidates: Sequence[str], within: Sequence[int], most: float) -> list[str]:
    """Returns the survivors of a round, best first.

    Args:
        candidates: the candidates, simplest first.
        within: the windows that all of them were measured on.
        most: the largest share that survives. Two thirds of it survive in any case, and the others if the paired
            intervals, which hold simultaneously, do not show them to be worse than the best.
    """
    ordered = ranked(losses, candidates, within)
    least, limit = math.ceil(2 / 3 * most * len(ordered)), math.ceil(most * len(ordered))
    level = LEVEL ** (1 / max(1, len(ordered) - 1))
    lows = ((each, losses.difference(each, ordered[0], within, level).low) for each in ordered[least:limit])
    return [*ordered[:least], *(each for each, low in lows if low is None or low <= 0)]


@dataclass(frozen=True)
class Decision:
    """The decision among the finalists.

    Attributes:
        chosen: the simplest finalist that is shown to be as good as every other one; if there is none, the one with the
            lowest loss on all windows that the finalists share.
        open: the finalists that may be better than the chosen one by more than the tolerance; empty if it is decided.
        equal: the other finalists that are shown to be as good as every other one.
        too_short: whether there is too little text for any interval.
    """

    chosen: str
    open: list[str]
    equal: list[str]
    too_short: bool


def decide(
    losses: CandidateLosses,
    finalists: Sequence[str],
    held_out: Sequence[int],
    everything: Sequence[int],
    tolerance: float,
    level: float,
) -> Decision:
    """Decides among the finalists.

    A finalist is good enough if the paired intervals show that its objective is at most ``tolerance`` above that of
    every other one. The intervals hold simultaneously for all pairs of finalists (Sidak, JASA 62, 1967), and their text
    has chosen none of the finalists. The simplest one that is good enough is chosen.

    Args:
        finalists: the finalists, simplest first.
        held_out: the held-out windows.
        everything: all windows that every finalist was measured on.
        tolerance: nats per token.
        level: the level of each interval, at which all hold together at 95%.
    """
    found = {pair: losses.difference(*pair, held_out, level) for pair in permutations(finalists, 2)}
    too_short = any(each.high is None for each in found.values())
    highs = {pair: math.inf if each.high is None else each.high for pair, each in found.items()}
    behind = {
        one: [other for other in finalists if other != one and highs[one, other] > tolerance] for one in finalists
    }
    enough = [finalist for finalist in finalists if not behind[finalist]]
    chosen = enough[0] if enough else ranked(losses, finalists, everything)[0]
    return Decision(
        chosen=chosen,
        open=behind[chosen],
        equal=[each for each in enough if each != chosen],
        too_short=too_short,
    )
