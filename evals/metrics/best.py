"""The schedule with the lowest loss at each length, and which others it is told apart from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby

from ...output.formatting import escaped, listed
from ..checking import Count, Length
from ..statistics.intervals import CONCLUSIVE
from . import perplexity
from .base import Metric, paired_change, rests_on
from .stored import Stored
from .verdicts import level, together, too_few, worse_than_a_guess


@dataclass(frozen=True)
class BestRow:
    """The schedule with the lowest loss at a length.

    ``apart`` are the others whose paired change against it has an interval above zero, and ``not_apart`` the rest.
    ``changes`` has these changes in nats, each with its bounds, which hold for all ``comparisons`` of the run together;
    nothing in a result of an older version.
    """

    length: Length
    schedule: str
    comparisons: Count
    apart: list[str]
    not_apart: list[str]
    changes: dict[str, list[float | None]] = field(default_factory=dict)


class Best(Metric[Stored, BestRow]):
    """The best schedule at each length, by intervals that hold for all comparisons of the run together."""

    row, key = BestRow, "best"

    def reduce(self, stored: Stored) -> list[BestRow]:
        """Returns a row for every length; none with one schedule, or of too few documents."""
        if not all(run.nll for run in stored.passes):
            return []
        there = {length: [each for each in stored.schedules if (each, length) in stored.read_from]
                 for length in stored.lengths}  # fmt: skip
        rests = {row.length: row.documents for row in perplexity.METRIC.rows(stored)}
        return [
            _row(stored, length, labels)
            for length, labels in there.items()
            if len(labels) > 1 and rests[length] >= CONCLUSIVE
        ]

    def to_markdown(self, stored: Stored) -> list[str]:
        """Returns one paragraph; lengths that say the same stand together. Nothing of a model worse than a guess."""
        rows = self.rows(stored)
        if worse_than_a_guess(stored) or len(stored.schedules) < 2:
            return []
        if few := too_few(max(row.documents for row in perplexity.METRIC.rows(stored))):
            return [f"Which schedule has the lowest loss is not said: {few}."]
        if not rows:
            return []
        parts = [
            f"{', '.join(f'{row.length:,}' for row in group)}: {words}"
            for words, group in groupby(rows, key=lambda row: said(row, lambda label: escaped(stored.named(label))))
        ]
        return [f"Lowest loss at {'; '.join(parts)} ({rests_on(stored)}; {together(rows[0].comparisons)})."]


METRIC = Best()


def _row(stored: Stored, length: int, labels: list[str]) -> BestRow:
    totals = {label: stored.totals(label, length) for label in labels}
    best = min(labels, key=lambda label: sum(totals[label].sums) / sum(totals[label].shares))
    others = [label for label in labels if label != best]
    found = {each: paired_change(stored, each, best, length, level(stored)) for each in others}
    changes = {each: [one.mean, one.low, one.high] for each, one in found.items()}
    apart, rest = ([each for each in others if (found[each].sign == 1) is is_apart] for is_apart in (True, False))
    return BestRow(length, best, stored.comparisons or 0, apart, rest, changes)


def said(row: BestRow, name: Callable[[str], str] = str) -> str:
    """Names the schedule, and which others it is told apart from.

    Args:
        name: the name of a label.
    """
    if row.not_apart:
        return f"{name(row.schedule)}, not told apart from {listed(map(name, row.not_apart))}"
    return f"{name(row.schedule)}, apart from {'every other' if len(row.apart) > 1 else name(row.apart[0])}"
