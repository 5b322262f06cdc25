"""Says before a run what its passes will take."""

from __future__ import annotations

from collections.abc import Sequence

from ..scoring import memory
from ..scoring.batches import Batch, Cost
from ..scoring.executor import Executor
from .progress import Notes, duration
from .runner import LONG_SECONDS

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


def announce_time(
    notes: Notes, executor: Executor, batch: Batch, left: Sequence[tuple[int, int]], where: str = ""
) -> None:
    """Says how long a long run will be, from a pass that is short beside it; the first batch tells more exactly.

    Args:
        batch: one of the run's.
        left: how many tokens will be fed, and in windows of how many positions.
        where: says what the time is of.
    """
    model, fed = executor.scorer.model, min(_TIMED, batch.positions)
    if sum(tokens for tokens, _ in left) < _TIMED_SHARE * fed:
        return
    taken = executor.seconds(batch, fed)
    if taken is None:
        return
    work = sum(tokens * memory.work(model, positions) for tokens, positions in left)
    expected = taken * work / (fed * memory.work(model, fed))
    if expected > LONG_SECONDS:
        notes.tell(
            f"time: an estimated {duration(expected).removeprefix('about ')}{where}, by a pass of {fed:,} tokens"
        )


_TIMED, _TIMED_SHARE = 512, 200
"""Tokens that are fed to estimate the time (three times), where two hundred times as many and more are to come."""
