"""Successive halving: many candidates on little text, then the best ones on more.

Every second document is set aside, to decide on later; the others are the text of the race. Round k measures those
that are left on twice as much of it as the round before, all on the same windows. The best third stays, and of the
others those that are not significantly worse than the best, best first, up to a half. (Successive halving: Jamieson and
Talwalkar, AISTATS 2016.) Where that would feed more than a quarter of what every candidate on all the text takes, as
with few documents, fewer stay: two thirds of a smaller share for certain.

The decision then rests on text that chose no candidate: which one is good enough for certain, and what is left open.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, permutations

from ..statistics.intervals import LEVEL
from .losses import CandidateLosses

SHARES = (1 / 8, 1 / 4, 1 / 2, 1.0)
"""The share of the race's text that is measured after each round."""

MOST = (1 / 2, 2 / 5, 1 / 3, 1 / 4, 1 / 6)
"""The share of candidates that stays in a round at most: the first of these that keeps the cost of all within
:data:`QUARTER`. Two thirds of it stay in any case."""

QUARTER = 1 / 4
"""The most tokens to feed, as a share of measuring every candidate on the full text."""

FINALISTS = 4
"""The number of finalists from the race, measured on the held-out text."""

LEAST_DOCUMENTS = 4
"""The fewest documents to hold out by document; for fewer, every second window is held out."""

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

    Windows are taken in the order of the golden ratio's multiples, so that those of every round are spread out.
    """
    spread = sorted(windows, key=lambda window: (windows.index(window) + 1) * _GOLDEN % 1)
    ends = sorted({max(1, round(share * len(windows))) for share in SHARES}) if windows else []
    return [sorted(spread[start:stop]) for start, stop in pairwise([0, *ends])]


def expected(candidates: int, always: int, race: Sequence[int], held_out: Sequence[int], most: float) -> int:
    """Counts the most windows to feed, if all candidates have distinct tables.

    Args:
        candidates, always: how many there are, and how many stay to the end in any case.
        race, held_out: the windows.
        most: the share that stays in a round at most.
    """
    left, fed = candidates, 0
    for part in slices(race):
        fed += left * len(part)
        left = min(left, math.ceil(most * left) + always)
    return fed + min(candidates, FINALISTS + always) * len(held_out)


def share_kept(
    candidates: int, always: int, race: Sequence[int], held_out: Sequence[int], besides: float = 0.0
) -> float:
    """Returns the share of candidates that stays in a round at most; see :data:`MOST`.

    Args:
        besides: windows' worth of tokens that are fed besides.
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
        most: the share that stays in a round at most.

    Returns:
        The rounds; the last one keeps :data:`FINALISTS` and those that always stay.
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
        most: the share that stays at most; two thirds of it stay in any case, the others if the paired intervals, which
            hold for all of them together, do not tell them apart from the best.
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
        chosen: the simplest that is shown to be as good as every other one, else the one with the lowest loss on all
            that the finalists were measured on.
        open: the finalists that may be better than the chosen one by more than the tolerance; none if it is decided.
        equal: the finalists that are shown to be as good as every other one, too.
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
    every other one. Every two finalists are a comparison, and the intervals hold for all of them together (Sidak, JASA
    62, 1967); the text that they are of has chosen none of the finalists. Among those that are good enough the simplest
    is chosen.

    Args:
        finalists: from the simplest.
        held_out: the windows that decide.
        everything: all windows that every finalist was measured on.
        tolerance: nats per token.
        level: of each interval, so that all hold together with 95%.
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
