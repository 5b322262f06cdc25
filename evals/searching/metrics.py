"""The metrics of a search: held-out perplexity, the found divisors, the losses during the search, and the verdict.

The verdict uses intervals over documents that did not choose the schedule.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...output.formatting import markdown
from ...output.plotting import COLOURS, in_style
from ..metrics.base import Metric, Picture, perplexities
from ..metrics.best import guessing
from ..metrics.cells import SENTENCE, change_cell, digits, exp, interval_cell, signed
from ..metrics.stored import AS_IS, Measured
from ..statistics.intervals import LEVEL, Estimate, familywise, ratio
from .options import KEYS, TEXT
from .search_space import Point
from .windows import ENOUGH

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


FOUND = "found"
"""The searched schedule's name in tables."""

TRUNCATION = "truncation"
"""The name, in tables, of the unchanged model with its context truncated to the trained length."""

HELD = {TEXT: "text", KEYS: "prompts"}
"""The kind of held-out data by objective."""

Divided = tuple[Sequence[float], Sequence[float], Sequence[float]]
"""The frequencies of all pairs in radians per token: the model's own, the starting ones, and the found ones."""


@dataclass(frozen=True)
class Trial:
    """A point and its loss.

    Attributes:
        spent: tokens fed until then.
        point: the numbers.
        loss: the weighted NLL in nats, averaged over the windows.
    """

    spent: int
    point: Point
    loss: float


@dataclass(repr=False)
class Searched(Measured):
    """The numbers of a finished search.

    Attributes:
        start: the starting schedule.
        spec: the found schedule, as ``--schedule`` takes it.
        lengths: the lengths of the held-out perplexities, ascending.
        names: the document of each measured window.
        proved: whether the measured windows did not choose the schedule.
        checks: the trials on the selection windows; the first is that of ``start``.
        found: the best check.
        steps: the trials on the text to learn from.
        tables: the frequencies, by layer type.
        spent: the tokens that the search fed.
        curves: the NLL of each measured window, by schedule and length: of the unchanged model, the start, the found
            schedule, and at the target truncation; empty without a comparison.
        beside: the tokens that the comparison fed, in addition to ``spent``.
    """

    start: str
    spec: str
    lengths: tuple[int, ...]
    names: Sequence[str]
    proved: bool
    checks: Sequence[Trial]
    found: Trial
    steps: Sequence[Trial]
    tables: Mapping[str, Divided]
    spent: int
    curves: Mapping[str, Mapping[int, Sequence[float]]]
    beside: int

    @property
    def held(self) -> str:
        """The kind of held-out data: text or prompts."""
        return HELD[str(self.protocol.get("objective", TEXT))]

    @property
    def kept(self) -> bool:
        """Whether the model's own table is used up to the trained length."""
        return bool(self.protocol.get("keep_short"))

    def is_own(self, length: int) -> bool:
        """Whether the found schedule keeps the model's own table at a length."""
        return self.kept and length == self.lengths[0]

    def estimate(self, values: Sequence[float], level: float = LEVEL) -> Estimate:
        """Returns the mean over the measured windows, with an interval over their documents."""
        groups = {name: [v for n, v in zip(self.names, values, strict=True) if n == name] for name in self.names}
        return ratio(
            [math.fsum(group) for group in groups.values()], [float(len(group)) for group in groups.values()], level
        )


def draw(stored: Searched) -> Figure:
    """Draws the divisor of each pair on the left, and on the right the losses of steps and of checks by tokens spent.

    Raises:
        RopescaleError: matplotlib is not installed.
    """
    with in_style(10, 4.6) as figure:
        panels = figure.subplot_mosaic([["pairs", "learned"], ["pairs", "held"]], sharex=False)
        _draw_divisors(panels["pairs"], stored)
        # The windows to learn from differ more than steps do, so their losses are dots.
        dots = {"markersize": 3.5, "alpha": 0.6, "markeredgewidth": 0}
        _draw_losses(panels["learned"], stored.steps, "o", "blue", **dots)
        panels["learned"].set_title(f"Loss of the {stored.held} to learn from, by step", loc="left", fontsize=10)
        held = panels["held"]
        _draw_losses(held, stored.checks, "o-", "vermilion", markersize=5)
        ring = {"markersize": 11, "markeredgecolor": "black", "markerfacecolor": "none", "linestyle": ""}
        _draw_losses(held, [stored.found], "o", "black", label=FOUND, **ring)
        held.set_title(f"Loss of the held-out {stored.held} at each check", loc="left", fontsize=10)
        held.set_xlabel("thousand tokens spent")
        held.margins(y=0.18)
        held.legend(frameon=False)
        panels["learned"].sharex(held)
    return figure


def _draw_divisors(axes: Axes, stored: Searched) -> None:
    from matplotlib.ticker import MaxNLocator

    many = len(stored.tables) > 1
    for number, (layers, (own, start, found)) in enumerate(stored.tables.items()):
        for table, label, colour, style in ((start, stored.start, "black", "--"), (found, FOUND, "vermilion", "-")):
            ratios = [b / f if f else float("nan") for b, f in zip(own, table, strict=True)]
            named = f"{layers}: {label}" if many else label
            axes.plot(ratios, style, marker="os^D"[number % 4], markersize=3.5, color=COLOURS[colour], label=named)
    axes.set_title("Divisor of each pair's frequency", loc="left", fontsize=10)
    axes.set_xlabel("pair (0 turns fastest)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylabel("divisor")
    axes.legend(frameon=False)


def _draw_losses(axes: Axes, trials: Sequence[Trial], style: str, colour: str, **marks: Any) -> None:
    """Draws losses by tokens spent."""
    x, y = [trial.spent / 1000 for trial in trials], [trial.loss for trial in trials]
    axes.plot(x, y, style, color=COLOURS[colour], **marks)
    axes.set_ylabel("weighted NLL\n(nats per token)")


@dataclass(frozen=True)
class ChangeRow:
    """The loss under the found schedule minus that under another, paired by document, in nats per token.

    The intervals of all baselines at one length hold simultaneously. They are None if the documents chose the schedule.
    """

    schedule: str
    baseline: str
    length: int
    delta_nll: float
    low: float | None
    high: float | None
    interval: str | None

    @property
    def change(self) -> Estimate:
        """The difference with its interval."""
        return Estimate(self.delta_nll, self.low, self.high, self.interval)

    @property
    def standing(self) -> str:
        """The comparison with the other schedule as text, by the interval; "" without one."""
        return {None: "", -1: "better than", 0: "not significantly different from", 1: "worse than"}[self.change.sign]


def verdict(changes: Sequence[ChangeRow], target: int, documents: int, *, unmoved: bool, kept: bool, held: str) -> str:
    """Compares the searched schedule with the baselines, and recommends one.

    Args:
        changes: the changes of the searched schedule against the start and the other baselines.
        documents: the number of documents, or sets of prompts.
        unmoved: whether no check beat the start.
        kept: whether the model's own table is kept for short text, which the start, used alone, would not do.
        held: the kind of held-out data, "text" or "prompts".
    """
    over, *others = rows = [row for row in changes if row.length == target]
    nothing = [f"No check beat the start, {over.baseline}: nothing was gained."] if unmoved else []
    if not over.standing:
        shown = others if unmoved else rows
        figures = ", ".join(f"{signed(row.delta_nll, SENTENCE)} against {row.baseline}" for row in shown)
        why = f"Not proved: the schedule was chosen on the documents that measure it (nats at {target:,}: {figures})."
        return " ".join([*nothing, why, f"Give {ENOUGH} documents of {target:,} tokens or more."])
    sets, answers = ("", "") if held == "text" else ("sets of ", " of an answer")
    where = f"At {target:,} tokens, on {documents} {sets}{'documents' if held == 'text' else held} that chose nothing, "
    if unmoved:
        said = [*nothing, *([f"{where}it is {_standings(others)}."] if others else [])]
    else:
        figure = f"{change_cell(over.change, SENTENCE)} nats per token{answers}"
        said = [f"{where}the found schedule is {over.standing} {over.baseline} ({figure})."]
        said += [f"It is {_standings(others)}."] if others else []
    return " ".join([*said, *_advice(rows, kept=kept, held=held)])


def _standings(rows: Sequence[ChangeRow]) -> str:
    return " and ".join(f"{row.standing} {row.baseline} ({change_cell(row.change, SENTENCE)})" for row in rows)


def _advice(rows: Sequence[ChangeRow], *, kept: bool, held: str) -> list[str]:
    """Recommends the best baseline or the start, if the search gained nothing significant."""
    over = rows[0]
    better = [row for row in rows if row.standing == "worse than" and not (kept and row is over)]
    if better:
        return [f"Use {max(better, key=lambda row: row.delta_nll).baseline}."]
    if over.standing == "better than" or kept:
        return []
    until = "Test with `ropescale retrieval`; until then use" if held == "prompts" else "Use"
    return [f"{until} {over.baseline}."]


@dataclass(frozen=True)
class HeldOutRow:
    """The perplexity of a schedule on the measured windows, up to a length."""

    schedule: str
    length: int
    windows: int
    nll: float
    ppl: float
    ppl_low: float | None
    ppl_high: float | None
    interval: str | None


class HeldOut(Metric[Searched, HeldOutRow]):
    """Held-out perplexity of the unchanged model, the starting schedule, the found schedule, and truncation."""

    row, key = HeldOutRow, "rows"
    picture = Picture("search.png", "The search: the divisor of each pair, and the losses", draw)

    def reduce(self, stored: Searched) -> list[HeldOutRow]:
        """Returns one row per schedule and length."""
        rows = []
        for name, n in ((name, n) for name, curve in stored.curves.items() for n in sorted(curve)):
            nll = stored.estimate(stored.curves[name][n])
            _, low, high = perplexities(nll)
            rows.append(HeldOutRow(name, n, len(stored.names), nll.mean, exp(nll.mean), low, high, nll.over))
        return rows

    def to_markdown(self, stored: Searched) -> list[str]:
        """Returns the schedule, a table of perplexities and changes, and the conclusion."""
        header, lines = comparison(self.rows(stored), CHANGES.rows(stored), stored.lengths)
        body = [[f"{n:,}", *line] for n, line in zip(stored.lengths, lines, strict=True)]
        found = markdown([f"held-out {stored.held}, length", *header], body, right=range(len(header) + 1))
        return [f"`{stored.spec}`", found, *FINDING.rows(stored)[0].said]

    def brief(self, stored: Searched) -> str:
        """Returns a table of only the perplexities."""
        rows = {(row.schedule, row.length): digits(row.ppl, 4) for row in self.rows(stored)}
        lines = [[f"{n:,}", *(rows.get((name, n), "") for name in stored.curves)] for n in stored.lengths]
        return markdown([f"held-out {stored.held}", *stored.curves], lines, right=range(len(stored.curves) + 1))


def comparison(
    rows: Sequence[HeldOutRow], changes: Sequence[ChangeRow], lengths: Sequence[int]
) -> tuple[list[str], list[list[str]]]:
    """Returns the header of the table of perplexities and changes, and its cells at each of the lengths."""
    ppl = {(row.schedule, row.length): interval_cell(row.ppl, row.ppl_low, row.ppl_high) for row in rows}
    delta = {(row.baseline, row.length): change_cell(row.change) for row in changes}
    shown, others = (list(dict.fromkeys(name for name, _ in cells)) for cells in (ppl, delta))
    lines = []
    for n in lengths:  # no change is given where the found schedule keeps the model's own table
        missing = "" if any(length == n for _, length in delta) else "its own table"
        lines.append([*(ppl.get((name, n), "") for name in shown), *(delta.get((name, n), missing) for name in others)])
    return [*shown, *(f"{FOUND} minus {name} (nats)" for name in others)], lines


class Changes(Metric[Searched, ChangeRow]):
    """The paired change of the loss against the start, the unchanged model and truncation, by document."""

    row, key = ChangeRow, "paired"

    def reduce(self, stored: Searched) -> list[ChangeRow]:
        """Returns one row per length for the start, then for the others; none where the model's own table is kept."""
        known = [name for name in (stored.start, AS_IS, TRUNCATION) if name in stored.curves]
        level = familywise(len(known))
        rows = []
        for name, n in ((each, n) for each in known for n in sorted(stored.curves[each]) if not stored.is_own(n)):
            pairs = zip(stored.curves[FOUND][n], stored.curves[name][n], strict=True)
            change = stored.estimate([after - before for after, before in pairs], level)
            interval = (change.low, change.high, change.over) if stored.proved else (None, None, None)
            rows.append(ChangeRow(FOUND, name, n, change.mean, *interval))
        return rows


@dataclass(frozen=True)
class HistoryRow:
    """A loss during the search: the weighted NLL in nats on the text to learn from, or on the held-out text."""

    tokens: int
    loss: float
    held_out: bool


class History(Metric[Searched, HistoryRow]):
    """The losses during the search, by tokens spent."""

    row, key = HistoryRow, "history"

    def reduce(self, stored: Searched) -> list[HistoryRow]:
        """Returns one row per trial, by tokens spent."""
        trials = [(step, False) for step in stored.steps] + [(check, True) for check in stored.checks]
        rows = [HistoryRow(trial.spent, trial.loss, held_out) for trial, held_out in trials]
        return sorted(rows, key=lambda row: row.tokens)


@dataclass(frozen=True)
class PairRow:
    """A pair's divisors: its own frequency over those of the starting and the found schedule; 1 keeps it."""

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
    """The found schedule, as ``--schedule`` takes it, and the tokens that the search fed.

    ``verdict`` compares it with the schedules that need no search, and names the one to use; ``note`` explains the
    table. ``beside`` counts the tokens that the comparison fed.
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
    """The searched schedule."""

    row, key = FoundRow, "found"

    def reduce(self, stored: Searched) -> list[FoundRow]:
        """Returns one row."""
        short, *_, target = stored.lengths
        worse, note = "", ""
        if stored.held == "text":  # reports an unchanged model that is worse than a uniform guess
            as_is = stored.estimate(stored.curves[AS_IS][short]).mean
            worse = guessing(as_is, short, stored.model.get("vocabulary"))
        if stored.kept:
            note = f"Up to {short:,} tokens the found schedule keeps the model's own table, so nothing changes there."
        how = {"unmoved": stored.found.point == stored.checks[0].point, "kept": stored.kept, "held": stored.held}
        said = worse or verdict(CHANGES.rows(stored), target, len(set(stored.names)), **how)
        return [FoundRow(stored.spec, stored.spent, said, note, stored.beside)]


HELD_OUT, CHANGES, HISTORY, DIVISORS, FINDING = HeldOut(), Changes(), History(), Divisors(), Finding()
METRICS = (HELD_OUT, CHANGES, HISTORY, DIVISORS, FINDING)
