"""Says before a run what its passes will take."""

from __future__ import annotations

from collections.abc import Sequence

from ..scoring.batches import Cost
from .progress import Notes

Named = tuple[str, int, Cost]
"""A pass: its schedule, its length and its cost."""


def announce_passes(notes: Notes, passes: Sequence[Named]) -> None:
    """Says of each pass what it feeds and scores, shortest length first, and then what all feed together."""
    for label, length, cost in sorted(passes, key=lambda each: each[1]):
        notes.tell(
            f"{label} at {length:,}: {cost.forwards:,} window{'s' * (cost.forwards != 1)}, {cost.positions:,} tokens "
            f"fed for {cost.scored:,} scored ({cost.useful_fraction:.1%}), {cost.times_one_pass:,.1f} times one pass"
        )
    total, times = (sum(getattr(cost, name) for *_, cost in passes) for name in ("positions", "times_one_pass"))
    notes.tell(f"in all {total:,} tokens to feed, {times:,.1f} times the documents")
