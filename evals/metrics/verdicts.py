"""What all sentences that conclude share: one level, and the fewest documents that they take."""

from __future__ import annotations

from ..statistics.intervals import CONCLUSIVE, LEVEL, PERCENT, familywise
from .stored import Stored


def level(stored: Stored) -> float:
    """Returns the level of each comparison of a run, so that all hold together.

    Of too few documents nothing is concluded, and each interval is of 95% by itself.
    """
    return LEVEL if stored.comparisons is None else familywise(stored.comparisons)


def too_few(documents: int) -> str:
    """Says that so many documents conclude nothing; "" for enough of them."""
    if documents >= CONCLUSIVE:
        return ""
    return f"a verdict takes {CONCLUSIVE} documents, and there {'is' if documents == 1 else 'are'} {documents}"


def together(comparisons: int | None) -> str:
    """Says what intervals hold for."""
    if not comparisons or comparisons == 1:
        return f"{PERCENT} intervals"
    return f"{PERCENT} intervals for all {comparisons:,} comparisons together"
