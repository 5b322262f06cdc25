"""What all sentences that conclude share: one level, and the fewest documents that they take."""

from __future__ import annotations

from math import comb

from ..results.stored import Stored
from ..statistics.intervals import CONCLUSIVE, LEVEL, PERCENT, familywise


def comparisons(stored: Stored) -> int:
    """Counts the comparisons that a sentence of the run may conclude from.

    Which schedule is best, and where, is known only afterwards: so every pair of schedules counts, and every schedule
    against truncation, on all tokens and on far repeats, at every length and in every source.
    """
    pairs = sum(comb(sum(each == length for _, each in stored.read_from), 2) for length in stored.lengths)
    last, subsets = stored.truncation, 1 if stored.repeat_distance is None else 2
    beyond = sum(length > last.length for _, length in stored.read_from) if last else 0
    return stored.groups * (pairs + subsets * beyond)


def concludes(stored: Stored) -> bool:
    """Whether the run has enough documents for a verdict."""
    return stored.texts >= CONCLUSIVE


def counted(stored: Stored) -> int | None:
    """Returns how many comparisons the intervals of a row hold for together; None where each is of 95% by itself."""
    return comparisons(stored) if concludes(stored) else None


def level(stored: Stored) -> float:
    """Returns the level of each of these comparisons, so that all intervals hold together.

    Of too few documents nothing is concluded, and each interval is of 95% by itself.
    """
    return familywise(comparisons(stored)) if concludes(stored) else LEVEL


def too_few(documents: int) -> str:
    """Says that so many documents conclude nothing; "" for enough of them."""
    if documents >= CONCLUSIVE:
        return ""
    return f"a verdict takes {CONCLUSIVE} documents, and there {'is' if documents == 1 else 'are'} {documents}"


def together(comparisons: int | None) -> str:
    """Says what the intervals hold for."""
    if not comparisons or comparisons == 1:
        return f"{PERCENT} intervals"
    return f"{PERCENT} intervals for all {comparisons:,} comparisons together"
