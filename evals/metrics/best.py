"""The schedule with the lowest loss at each length, and which others it is told apart from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from math import comb

from ...output.escaping import escaped
from ...output.formatting import listed
from ..checking import Count, Length
from ..results.stored import Stored
from ..statistics.intervals import LEVEL, PERCENT
from .base import Metric, paired_change, rests_on
from .guessing import worse_than_a_guess


@dataclass(frozen=True)
class BestRow:
    """The schedule with the lowest loss at a length.

    ``apart`` are the others whose paired change against it has an interval above zero, and ``not_apart`` the rest. The
    intervals hold for all ``comparisons`` of the run together, with the level of all tables.
    """

    length: Length
    schedule: str
    comparisons: Count
    apart: list[str]
    not_apart: list[str]


class Best(Metric[Stored, BestRow]):
    """The best schedule at each length.

    Which one is best is only known afterwards, so every pair of schedules counts as a comparison, at every length, and
    in every source where there are several: with c of them, each has the level ``0.95 ** (1 / c)`` (Sidak, JASA 62,
    1967).
    """

    row, key = BestRow, "best"

    def reduce(self, stored: Stored) -> list[BestRow]:
        """Returns a row for every length; none with one schedule, or where there is too little for an interval."""
        if not all(run.nll for run in stored.passes):
            return []
        there = {length: [each for each in stored.schedules if (each, length) in stored.read_from]
                 for length in stored.lengths}  # fmt: skip
        comparisons = stored.groups * sum(comb(len(labels), 2) for labels in there.values())
        rows = (
            _row(stored, length, labels, comparisons)
            for length, labels in there.items()
            if len(labels) > 1 and any(stored.totals(labels[0], length).shares)
        )
        return [row for row in rows if row]

    def to_markdown(self, stored: Stored) -> list[str]:
        """Returns one paragraph; lengths that say the same stand together. Nothing of a model worse than a guess."""
        rows = self.rows(stored)
        if not rows or worse_than_a_guess(stored):
            return []
        parts = [
            f"{', '.join(f'{row.length:,}' for row in group)}: {said}"
            for said, group in groupby(rows, key=lambda row: _said(row, stored.named))
        ]
        count = rows[0].comparisons
        held = "interval" if count == 1 else f"intervals, which hold for all {count:,} comparisons together"
        return [f"Lowest loss at {'; '.join(parts)} ({rests_on(stored)}; by {PERCENT} paired {held})."]


METRIC = Best()


def _row(stored: Stored, length: int, labels: list[str], comparisons: int) -> BestRow | None:
    totals = {label: stored.totals(label, length) for label in labels}
    best = min(labels, key=lambda label: sum(totals[label].sums) / sum(totals[label].shares))
    apart, rest = [], []
    for label in labels:
        if label == best:
            continue
        low = paired_change(stored, label, best, length, LEVEL ** (1 / comparisons)).low
        if low is None:
            return None
        (apart if low > 0 else rest).append(label)
    return BestRow(length, best, comparisons, apart, rest)


def _said(row: BestRow, name: Callable[[str], str]) -> str:
    if not row.not_apart:
        others = "every other" if len(row.apart) > 1 else escaped(name(row.apart[0]))
        return f"{escaped(name(row.schedule))}, apart from {others}"
    return f"{escaped(name(row.schedule))}, not told apart from {escaped(listed(map(name, row.not_apart)))}"
