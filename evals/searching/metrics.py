"""What a search shows: perplexity on the held-out text, the numbers that were found, and the loss on the way."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ...formatting import markdown
from ..metrics.base import Metric, Picture, mark
from ..metrics.cells import around, exp, interval_cell, signed
from ..results.statistics import DOCUMENTS, PERCENT
from .methods.asking import Check
from .plots import draw
from .searched import Searched

FOUND = "found"
"""What the tables call the schedule that was found."""


@dataclass(frozen=True)
class HeldOutRow:
    """The perplexity of the held-out windows up to a length."""

    schedule: str
    length: int
    windows: int
    nll: float
    ppl: float
    ppl_low: float | None
    ppl_high: float | None
    interval: str | None


class HeldOut(Metric[Searched, HeldOutRow]):
    """Perplexity of the held-out text under the schedule that the search started at, and under the one it found."""

    row, key = HeldOutRow, "rows"
    picture = Picture("search.png", "The search: the divisor of each pair, and the loss on the way", draw)

    def reduce(self, stored: Searched) -> list[HeldOutRow]:
        """Returns one row per schedule and length."""
        checks = {stored.start: stored.checks[0], FOUND: stored.found}
        return [self._row(stored, name, check, n) for name, check in checks.items() for n in stored.lengths]

    def _row(self, stored: Searched, name: str, check: Check, length: int) -> HeldOutRow:
        found = stored.estimate(stored.at(check, length))
        low, high = (None if bound is None else exp(bound) for bound in (found.low, found.high))
        return HeldOutRow(name, length, len(stored.names), found.mean, exp(found.mean), low, high, found.over)

    def to_markdown(self, stored: Searched) -> list[str]:
        """Returns the schedule, and a table of perplexities with the change from the start."""
        rows = {(row.schedule, row.length): row for row in self.rows(stored)}
        changes = {row.length: row for row in CHANGES.rows(stored)}
        lines = [
            [f"{n:,}", *(_cell(rows[name, n]) for name in (stored.start, FOUND)), _change(changes[n])]
            for n in stored.lengths
        ]
        header = ["held-out text, length", stored.start, FOUND, "change (nats)"]
        return [f"`{stored.spec}`", markdown(header, lines, right=range(4))]


def _cell(row: HeldOutRow) -> str:
    return interval_cell(row.ppl, row.ppl_low, row.ppl_high)


@dataclass(frozen=True)
class ChangeRow:
    """The change of the held-out loss from the start of the search, paired by document, in nats per token."""

    schedule: str
    baseline: str
    length: int
    delta_nll: float
    low: float | None
    high: float | None
    interval: str | None


class Changes(Metric[Searched, ChangeRow]):
    """The change of the held-out loss from the start, paired by document."""

    row, key = ChangeRow, "paired"

    def reduce(self, stored: Searched) -> list[ChangeRow]:
        """Returns one row per length."""
        return [self._row(stored, length) for length in stored.lengths]

    def _row(self, stored: Searched, length: int) -> ChangeRow:
        pairs = zip(stored.at(stored.found, length), stored.at(stored.checks[0], length), strict=True)
        found = stored.estimate([after - before for after, before in pairs])
        return ChangeRow(FOUND, stored.start, length, found.mean, found.low, found.high, found.over)


def _change(row: ChangeRow) -> str:
    return f"{signed(row.delta_nll)}{around(row.delta_nll, row.low, row.high, sign='+')}{mark(row.interval)}"


@dataclass(frozen=True)
class HistoryRow:
    """A loss on the way: the weighted NLL in nats of the text to learn from, or of the held-out one."""

    tokens: int
    loss: float
    held_out: bool


class History(Metric[Searched, HistoryRow]):
    """The losses on the way, by tokens spent."""

    row, key = HistoryRow, "history"

    def reduce(self, stored: Searched) -> list[HistoryRow]:
        """Returns one row per point that was tried, and per check."""
        tried = [HistoryRow(tokens, loss, False) for tokens, loss in stored.steps]
        held = [HistoryRow(check.spent, check.loss, True) for check in stored.checks]
        return sorted(tried + held, key=lambda row: row.tokens)


@dataclass(frozen=True)
class PairRow:
    """A pair's divisor: its own frequency over that under a schedule; 1 keeps it."""

    layers: str
    pair: int
    start: float
    found: float


class Divisors(Metric[Searched, PairRow]):
    """What each pair is divided by."""

    row, key = PairRow, "divisors"

    def reduce(self, stored: Searched) -> list[PairRow]:
        """Returns one row per layer type and pair that turns."""
        return [
            PairRow(layers, pair, own / start, own / found)
            for layers, tables in stored.tables.items()
            for pair, (own, start, found) in enumerate(zip(*tables, strict=True))
            if own and start and found
        ]


@dataclass(frozen=True)
class FoundRow:
    """What was found: the schedule as ``--schedule`` takes it, and the tokens that were fed."""

    spec: str
    tokens: int


class Finding(Metric[Searched, FoundRow]):
    """The schedule that was found."""

    row, key = FoundRow, "found"

    def reduce(self, stored: Searched) -> list[FoundRow]:
        """Returns one row."""
        return [FoundRow(stored.spec, stored.spent)]


HELD_OUT, CHANGES, HISTORY, DIVISORS, FINDING = HeldOut(), Changes(), History(), Divisors(), Finding()
METRICS = (HELD_OUT, CHANGES, HISTORY, DIVISORS, FINDING)


def interval_line(documents: Iterable[str]) -> str:
    """Says what the intervals are over."""
    number = len(set(documents))
    over = f"over {number} {DOCUMENTS}" if number > 1 else "not known, from one document"
    return f"{PERCENT} intervals {over}"
