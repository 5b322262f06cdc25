"""Plans a run without running it: windows, tokens, forward passes, memory, and time by a batch that was timed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

from ...output.formatting import markdown
from ..scoring.batches import Batch, Cost
from .progress import Notes, duration

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


@dataclass(frozen=True)
class PlannedPass:
    """One pass of a planned run.

    Attributes:
        title: its schedule and length, or what is compared.
        windows: sequences that go through the model.
        batches: forward passes, each of several windows.
        tokens: that are fed, BOS included.
    """

    title: str
    windows: int
    batches: int
    tokens: int


@dataclass(frozen=True)
class DryRun:
    """The plan of a run, with its memory and time.

    Attributes:
        passes: in the order in which they run; passes that share their tables are there once.
        memory: the weights and a batch, in a sentence.
        seconds: estimated for one process, from one batch that was timed once warm.
        timed: tokens of that batch.
    """

    passes: Sequence[PlannedPass]
    memory: str
    seconds: float
    timed: int

    def to_dict(self) -> dict[str, object]:
        """Returns it as plain data."""
        return asdict(self)

    def to_markdown(self) -> str:
        """Returns the table of the passes, then memory and time."""
        total = [sum(getattr(each, name) for each in self.passes) for name in ("windows", "batches", "tokens")]
        counts = [[each.title, each.windows, each.batches, each.tokens] for each in self.passes] + [["in all", *total]]
        rows = [[title, *(f"{number:,}" for number in numbers)] for title, *numbers in counts]
        table = markdown(["pass", "windows", "forward passes", "tokens fed"], rows, right=[1, 2, 3])
        time = f"time: {duration(self.seconds)} in one process, by a batch of {self.timed:,} tokens"
        return f"{table}\n\n{self.memory}\n{time}"


def dry_run(
    left: Mapping[str, Sequence[Batch]], batch: Batch, seconds: float, work: Callable[[int], float], memory: str
) -> DryRun:
    """Plans a run from its batches.

    Args:
        left: batches by the title of their pass.
        batch, seconds: one that was timed, and what it took.
        work: of a token in a window of so many positions.
        memory: what the run needs, in a sentence.
    """
    passes = [
        PlannedPass(title, sum(len(each.feeds) for each in batches), len(batches), sum(each.fed for each in batches))
        for title, batches in left.items()
        if batches
    ]
    whole = sum(each.fed * work(each.positions) for batches in left.values() for each in batches)
    return DryRun(passes, memory, seconds * whole / (batch.fed * work(batch.positions)), batch.fed)


def timed(act: Callable[[], object]) -> float:
    """Returns the seconds that an act takes the second time."""
    act()
    start = time.perf_counter()
    act()
    return time.perf_counter() - start
