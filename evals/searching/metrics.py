"""The metrics of a search: perplexity on the held-out text, the numbers found, and the loss on the way."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...output.formatting import markdown
from ..metrics import guessing
from ..metrics.base import Metric, Picture
from ..metrics.cells import exp, interval_cell
from ..statistics.intervals import familywise
from .plots import draw
from .searched import AS_IS, FOUND, TRUNCATION, Searched
from .verdict import ChangeRow, change_cell, verdict


@dataclass(frozen=True)
class HeldOutRow:
    """The perplexity of the windows that are measured, up to a length."""

    schedule: str
    length: int
    windows: int
    nll: float
    ppl: float
    ppl_low: float | None
    ppl_high: float | None
    interval: str | None


class HeldOut(Metric[Searched, HeldOutRow]):
    """Perplexity as the model is, under the schedule that the search started at, found, and of truncation."""

    row, key = HeldOutRow, "rows"
    picture = Picture("search.png", "The search: the divisor of each pair, and the loss on the way", draw)

    def reduce(self, stored: Searched) -> list[HeldOutRow]:
        """Returns one row per schedule and length."""
        return [_row(stored, name, n, curve[n]) for name, curve in stored.curves.items() for n in sorted(curve)]

    def to_markdown(self, stored: Searched) -> list[str]:
        """Returns the schedule, a table of perplexities with the changes, and what follows."""
        rows = {(row.schedule, row.length): row for row in self.rows(stored)}
        changes = {(row.baseline, row.length): row for row in CHANGES.rows(stored)}
        others = list(dict.fromkeys(name for name, _ in changes))
        lines = [
            [
                f"{n:,}",
                *(_cell(rows[name, n]) if (name, n) in rows else "" for name in stored.curves),
                *(change_cell(changes[name, n]) if (name, n) in changes else missing(changes, n) for name in others),
            ]
            for n in stored.lengths
        ]
        header = [f"held-out {stored.held}, length", *stored.curves, *(f"found minus {name} (nats)" for name in others)]
        found = markdown(header, lines, right=range(len(header)))
        return [f"`{stored.spec}`", found, *FINDING.rows(stored)[0].said]


def missing(changes: Iterable[tuple[str, int]], length: int) -> str:
    """Says why there is no change at a length: the found schedule is the model's own table there; else nothing."""
    return "" if any(each == length for _, each in changes) else "its own table"


def _row(stored: Searched, name: str, length: int, losses: Sequence[float]) -> HeldOutRow:
    found = stored.estimate(losses)
    low, high = (None if bound is None else exp(bound) for bound in (found.low, found.high))
    return HeldOutRow(name, length, len(stored.names), found.mean, exp(found.mean), low, high, found.over)


def _cell(row: HeldOutRow) -> str:
    return interval_cell(row.ppl, row.ppl_low, row.ppl_high)


class Changes(Metric[Searched, ChangeRow]):
    """The change of the loss from the start, the model as it is and truncation, paired by document."""

    row, key = ChangeRow, "paired"

    def reduce(self, stored: Searched) -> list[ChangeRow]:
        """Returns one row per length for the start, then for the others; none where the model's own table is kept."""
        known = [name for name in (stored.start, AS_IS, TRUNCATION) if name in stored.curves]
        level = familywise(len(known))
        lengths = [(name, n) for name in known for n in sorted(stored.curves[name]) if not stored.is_own(n)]
        return [_change(stored, name, length, level) for name, length in lengths]


def _change(stored: Searched, name: str, length: int, level: float) -> ChangeRow:
    curves = stored.curves
    pairs = zip(curves[FOUND][length], curves[name][length], strict=True)
    found = stored.estimate([after - before for after, before in pairs], level)
    if not stored.proved:
        return ChangeRow(FOUND, name, length, found.mean, None, None, None)
    return ChangeRow(FOUND, name, length, found.mean, found.low, found.high, found.over)


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
    """The divisor of each pair."""

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
    """The schedule that was found as ``--schedule`` takes it, and the tokens that were fed.

    ``verdict`` says whether it is better than what is there without a search, and which to use otherwise; ``note`` what
    is to be known of the table. ``beside`` are the tokens that were fed to measure it.
    """

    spec: str
    tokens: int
    verdict: str = ""
    note: str = ""
    beside: int = 0

    @property
    def said(self) -> list[str]:
        """The sentences below the table."""
        return [each for each in (self.note, self.verdict) if each]


class Finding(Metric[Searched, FoundRow]):
    """The schedule that was found."""

    row, key = FoundRow, "found"

    def reduce(self, stored: Searched) -> list[FoundRow]:
        """Returns one row."""
        changes, documents = CHANGES.rows(stored), len(set(stored.names))
        how = {"unmoved": stored.found.point == stored.checks[0].point, "kept": stored.kept, "held": stored.held}
        said = _worse_than_a_guess(stored) or verdict(changes, stored.lengths[-1], documents, **how)
        return [FoundRow(stored.spec, stored.spent, said, _note(stored), stored.beside)]


def _worse_than_a_guess(stored: Searched) -> str:
    """Returns a sentence where the model as it is predicts the held-out text worse than a guess; else ""."""
    length = stored.lengths[0]
    if stored.held != "text":
        return ""
    return guessing.said(stored.estimate(stored.curves[AS_IS][length]).mean, length, stored.model.get("vocabulary"))


def _note(stored: Searched) -> str:
    """Says that there is no gain where the model's own table is kept; else nothing."""
    if not stored.kept:
        return ""
    return (
        f"Up to {stored.lengths[0]:,} tokens the found schedule is the model's own table, which is kept: nothing was "
        "gained there, and nothing was lost."
    )


HELD_OUT, CHANGES, HISTORY, DIVISORS, FINDING = HeldOut(), Changes(), History(), Divisors(), Finding()
METRICS = (HELD_OUT, CHANGES, HISTORY, DIVISORS, FINDING)
