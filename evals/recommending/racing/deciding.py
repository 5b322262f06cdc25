"""The decision, on text that chose no candidate: which one is good enough for certain, and what is left open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

from ...statistics.intervals import Estimate
from .measured import CandidateLosses

TOLERANCE = 0.005
"""Nats per token, or half a percent of perplexity: schedules closer than this are equally good."""


@dataclass(frozen=True)
class Decision:
    """A decision among the finalists.

    Attributes:
        chosen: the simplest that is shown to be as good as every other one, else the one with the lowest loss.
        lowest: the one with the lowest loss on all that the finalists were measured on.
        open: the finalists that may be better than the chosen one by more than the tolerance; none if it is decided.
        equal: the finalists that are shown to be as good as every other one, too.
        too_short: whether there is too little text for any interval.
    """

    chosen: str
    lowest: str
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
    lowest = min(finalists, key=lambda each: losses.mean(each, everything))
    found = {pair: losses.difference(*pair, held_out, level) for pair in permutations(finalists, 2)}
    too_short = any(each.high is None for each in found.values())
    behind = {
        one: [other for other in finalists if other != one and not _within(found[one, other], tolerance)]
        for one in finalists
    }
    enough = [each for each in finalists if not behind[each]]
    chosen = enough[0] if enough else lowest
    return Decision(
        chosen=chosen,
        lowest=lowest,
        open=behind[chosen],
        equal=[each for each in enough if each != chosen],
        too_short=too_short,
    )


def _within(difference: Estimate, tolerance: float) -> bool:
    return difference.high is not None and difference.high <= tolerance
