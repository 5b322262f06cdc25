"""The metrics of a retrieval run: accuracy, gains against the baseline, effective length."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...output.escaping import escaped
from ...output.formatting import markdown
from ..checking import Count, Length
from ..metrics.base import Metric, Picture
from ..metrics.cells import NO_INTERVAL, leans, misleads, table
from ..metrics.stored import AS_IS
from ..statistics.intervals import PERCENT, Estimate, mcnemar, ratio, wilson
from . import plots
from .answers import AccuracyRow, Answer, StoredAnswers

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def answered(rows: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> list[str]:
    """Returns the share that each schedule answers at the longest length; of many, of the best three.

    Args:
        rows: of results.json.
        names: the short names of labels.
    """
    overall = [row for row in rows if row["depth"] is None]
    if not any(row["correct"] for row in overall):
        return ["No schedule answers anything at any length."] if overall else []
    longest = max(row["length"] for row in overall)
    there = sorted((row for row in overall if row["length"] == longest), key=lambda row: -row["accuracy"])
    parts = [f"{names.get(row['schedule'], row['schedule'])} answers {row['accuracy']:.0%}" for row in there[:3]]
    return [f"At {longest:,} tokens {', '.join(parts)}."]


@dataclass(frozen=True)
class GainsRow:
    """The change of a schedule against the baseline on the same questions of one length.

    Attributes:
        gained: questions that only the schedule answers.
        lost: questions that only the baseline answers.
        delta_accuracy: schedule minus baseline.
        p_value: two-sided, of the exact McNemar test (a sign test on the questions that differ).
        delta_nll: mean answer NLL of the schedule minus the baseline's, in nats; low and high are 95% over prompts.
    """

    schedule: str
    baseline: str
    length: Length
    answers: Count
    gained: Count
    lost: Count
    delta_accuracy: float
    p_value: float
    delta_nll: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class EffectiveRow:
    """The longest length up to which a schedule is good enough at every length; None if it is at none.

    ``needed`` is the accuracy that counts as good enough.
    """

    schedule: str
    length: Length | None
    needed: float


def draw(asked: StoredAnswers) -> Figure:
    """Draws heat maps of accuracy and answer NLL by length and depth, one column per schedule."""
    return plots.draw(asked, ACCURACY.rows(asked))


class Accuracy(Metric[StoredAnswers, AccuracyRow]):
    """The accuracy and answer NLL of every schedule."""

    row, key = AccuracyRow, "rows"
    picture = Picture("retrieval.png", "Accuracy and answer NLL by length and depth", draw)

    def reduce(self, stored: StoredAnswers) -> list[AccuracyRow]:
        """Returns, per schedule and length, one row over all depths and one for each depth."""
        return [_accuracy(stored, *key, depth) for key in stored.tables for depth in (None, *stored.depths)]

    def to_markdown(self, stored: StoredAnswers) -> list[str]:
        """Returns a table of accuracies and one of NLLs, over all depths."""
        overall = [row for row in self.rows(stored) if row.depth is None]
        reach = {row.schedule: "-" if row.length is None else f"{row.length:,}" for row in EFFECTIVE.rows(stored)}
        accuracy = {(row.schedule, row.length): accuracy_cell(row) for row in overall}
        nll = {(row.schedule, row.length): _nll_cell(row) for row in overall}
        labels, chance = [*stored.schedules, _CHANCE], f"{stored.chance:#.4g}"
        nll |= {(_CHANCE, length): chance for length in stored.lengths}
        about = f"NLL of the whole answer (nats; chance is any number of {stored.protocol['digits']} digits):"
        return [
            _table(stored, "accuracy", accuracy, reach),
            *_where_nothing_is_found(stored, overall),
            about,
            table(stored.lengths, "answer NLL", nll, labels, name=stored.named),
        ]


_CHANCE = "chance"
"""The last line of the table of NLLs."""


def _where_nothing_is_found(stored: StoredAnswers, rows: Sequence[AccuracyRow]) -> list[str]:
    """Returns what a map without any answer says, or does not: whether the unchanged model can do the task at all."""
    if any(row.correct for row in rows):
        return []
    trained, none = stored.trained_length, "No schedule answers anything"
    if trained is None:
        return [f"{none}, and how long the model was trained at is not known."]
    within = [row for row in rows if row.schedule == AS_IS and row.length <= trained]
    if not within:
        return [
            f"{none}, and {AS_IS} was not asked within the {trained:,} tokens that it was trained at: whether it can "
            "do the task at all is not known. Add such a length."
        ]
    best = min(within, key=lambda row: row.answer_nll)
    lengths = ", ".join(f"{row.length:,}" for row in within)
    return [
        f"{none}, and neither does the model as it is within the {trained:,} tokens that it was trained at (asked at "
        f"{lengths}; an answer costs it {best.answer_nll:.4g} nats at best, and chance {stored.chance:.4g}), so "
        "the map of accuracy says nothing about the schedules."
    ]


class Gains(Metric[StoredAnswers, GainsRow]):
    """The paired change against the baseline."""

    row, key = GainsRow, "paired"

    def reduce(self, stored: StoredAnswers) -> list[GainsRow]:
        """Returns a row for every schedule but the baseline at every length that both have."""
        others = [key for key in stored.tables if key[0] != stored.baseline]
        return [_gains(stored, *key) for key in others if (stored.baseline, key[1]) in stored.tables]

    def to_markdown(self, stored: StoredAnswers) -> list[str]:
        """Returns the questions gained and lost, and the change in answer NLL."""
        rows = self.rows(stored)
        if not rows:
            return []
        change = {(row.schedule, row.length): f"+{row.gained} -{row.lost} (p = {row.p_value:.2g})" for row in rows}
        delta = {(row.schedule, row.length): _around(row.delta_nll, row.low, row.high, "+.3f") for row in rows}
        baseline = escaped(stored.named(stored.baseline))
        return [
            f"Questions gained and lost against {baseline} (exact McNemar p):",
            _table(stored, "gained, lost", change),
            f"Change in answer NLL against {baseline} on the same questions (nats):",
            _table(stored, "change", delta),
        ]


class EffectiveLength(Metric[StoredAnswers, EffectiveRow]):
    """The effective length of every schedule.

    As in NoLiMa (Modarressi et al. 2025, arXiv:2502.05167), good enough is a share of the accuracy at a short length.
    All schedules share one bar, ``threshold`` times the best accuracy at the shortest length, so that a schedule that
    is bad everywhere has no effective length.
    """

    row, key = EffectiveRow, "effective"

    def reduce(self, stored: StoredAnswers) -> list[EffectiveRow]:
        """Returns one row per schedule."""
        overall = {(row.schedule, row.length): row.accuracy for row in ACCURACY.rows(stored) if row.depth is None}
        best = max((overall.get((schedule, stored.lengths[0]), 0.0) for schedule in stored.schedules), default=0.0)
        needed = stored.threshold * best
        return [EffectiveRow(each, _reach(stored, overall, each, needed), needed) for each in stored.schedules]


ACCURACY, GAINS, EFFECTIVE = Accuracy(), Gains(), EffectiveLength()

METRICS: tuple[Metric[StoredAnswers, Any], ...] = (ACCURACY, GAINS, EFFECTIVE)


def _accuracy(stored: StoredAnswers, schedule: str, length: int, depth: float | None) -> AccuracyRow:
    asked = [answer for answer in stored.by_length[schedule, length] if depth is None or answer.depth == depth]
    correct = sum(answer.correct for answer in asked)
    low, high = wilson(correct, len(asked))
    nll = _by_prompt((answer, answer.nll) for answer in asked).within(0)
    return AccuracyRow(
        schedule=schedule,
        table_sha256=stored.tables[schedule, length],
        length=length,
        depth=depth,
        answers=len(asked),
        correct=correct,
        accuracy=correct / len(asked),
        accuracy_low=low,
        accuracy_high=high,
        answer_nll=nll.mean,
        answer_nll_low=nll.low,
        answer_nll_high=nll.high,
    )


def _gains(stored: StoredAnswers, schedule: str, length: int) -> GainsRow:
    ours, theirs = stored.by_length[schedule, length], stored.by_length[stored.baseline, length]
    pairs = list(zip(ours, theirs, strict=True))
    gained = sum(one.correct and not base.correct for one, base in pairs)
    lost = sum(base.correct and not one.correct for one, base in pairs)
    nll = _by_prompt((one, one.nll - base.nll) for one, base in pairs)
    return GainsRow(
        schedule=schedule,
        baseline=stored.baseline,
        length=length,
        answers=len(pairs),
        gained=gained,
        lost=lost,
        delta_accuracy=(gained - lost) / len(pairs),
        p_value=mcnemar(gained, lost),
        delta_nll=nll.mean,
        low=nll.low,
        high=nll.high,
    )


def _by_prompt(values: Iterable[tuple[Answer, float]]) -> Estimate:
    """Returns the mean over questions. Its interval is over prompts: questions of one prompt are not independent."""
    groups: dict[int, list[float]] = {}
    for answer, value in values:
        groups.setdefault(answer.prompt, []).append(value)
    return ratio([sum(group) for group in groups.values()], [len(group) for group in groups.values()])


def _reach(stored: StoredAnswers, overall: Mapping[tuple[str, int], float], schedule: str, needed: float) -> int | None:
    """Returns the last length before the first one that is not good enough or was not measured."""
    reached = None
    for length in stored.lengths:
        if not 0 < needed <= overall.get((schedule, length), -1.0) + 1e-12:
            break
        reached = length
    return reached


def _table(
    stored: StoredAnswers, corner: str, cells: Mapping[tuple[str, int], str], reach: Mapping[str, str] | None = None
) -> str:
    """Returns a table of the schedules that have cells."""
    labels = [label for label in stored.schedules if any(label == schedule for schedule, _ in cells)]
    return table(stored.lengths, corner, cells, labels, reach, stored.named)


def by_depth(stored: StoredAnswers) -> str:
    """Returns a table for each schedule, with a line for each depth."""
    cells = {
        (row.schedule, row.length, row.depth): f"{accuracy_cell(row)} {row.answer_nll:.2f}"
        for row in ACCURACY.rows(stored)
    }
    header = ["depth", *(f"{length:,}" for length in stored.lengths)]
    tables = []
    for schedule in stored.schedules:
        body = [
            [f"{depth:.3g}", *(cells.get((schedule, length, depth), "") for length in stored.lengths)]
            for depth in stored.depths
        ]
        tables.append(f"### {escaped(stored.named(schedule))}\n\n{markdown(header, body, right=range(1, len(header)))}")
    return "\n\n".join(["## By depth", f"Accuracy with its Wilson {PERCENT} interval, and the answer's NLL.", *tables])


def accuracy_cell(row: AccuracyRow) -> str:
    """Writes an accuracy with its interval."""
    return f"{row.accuracy:.2f} [{row.accuracy_low:.2f}, {row.accuracy_high:.2f}]"


def _nll_cell(row: AccuracyRow) -> str:
    return _around(row.answer_nll, row.answer_nll_low, row.answer_nll_high, "#.4g")


def _around(value: float, low: float | None, high: float | None, form: str) -> str:
    figure = f"{value:{form}}".rstrip(".")
    if low is None or high is None:
        return f"{figure} {NO_INTERVAL}"
    half = f"{(high - low) / 2:.2g}"
    by_bounds = leans(value, low, high) or misleads(low, high, figure, half)
    return f"{figure} ({low:.3g} to {high:.3g})" if by_bounds else f"{figure} ± {half}"
