"""The schedule with the lowest loss at each length, and the schedules with significantly higher losses."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby

from ...output.formatting import listed
from ..statistics.intervals import CONCLUSIVE, LEVEL, PERCENT, familywise
from . import perplexity
from .base import Metric, paired_change, rests_on
from .cells import digits, exp
from .stored import AS_IS, Stored


@dataclass(frozen=True)
class BestRow:
    """The schedule with the lowest loss at a length.

    ``apart`` lists the schedules whose loss is significantly higher, which means that the interval of their paired
    change against ``schedule`` is above zero. ``not_apart`` lists all other schedules. ``changes`` contains the paired
    changes in nats, each with its bounds, which hold for all ``comparisons`` of the run together.
    """

    length: int
    schedule: str
    comparisons: int
    apart: list[str]
    not_apart: list[str]
    changes: dict[str, list[float | None]]


class Best(Metric[Stored, BestRow]):
    """The best schedule at each length, by intervals that hold for all comparisons of the run together."""

    row, key = BestRow, "best"

    def reduce(self, stored: Stored) -> list[BestRow]:
        """Returns a row for every length that has more than one schedule and enough documents."""
        there = {length: [each for each in stored.schedules if (each, length) in stored.read_from]
                 for length in stored.lengths}  # fmt: skip
        rests = {row.length: row.documents for row in perplexity.METRIC.rows(stored)}
        rows = []
        for length, labels in there.items():
            if len(labels) > 1 and rests[length] >= CONCLUSIVE:
                means = {label: stored.totals(label, length).mean for label in labels}
                best = min(labels, key=means.__getitem__)
                others = [label for label in labels if label != best]
                found = {label: paired_change(stored, label, best, length, level(stored)) for label in others}
                changes = {label: [one.mean, one.low, one.high] for label, one in found.items()}
                apart = [label for label in others if found[label].sign == 1]
                rest = [label for label in others if label not in apart]
                rows.append(BestRow(length, best, stored.comparisons or 0, apart, rest, changes))
        return rows

    def to_markdown(self, stored: Stored) -> list[str]:
        """Returns a paragraph that groups lengths with equal results.

        Returns an empty list if there is only one schedule, or if the model is worse than a uniform guess.
        """
        rows = self.rows(stored)
        if worse_than_a_guess(stored) or len(stored.schedules) < 2:
            return []
        if few := too_few(max(row.documents for row in perplexity.METRIC.rows(stored))):
            return [f"The schedule with the lowest loss is undecided: {few}."]
        if not rows:
            return []
        parts = [
            f"{', '.join(f'{row.length:,}' for row in group)}: {words}"
            for words, group in groupby(rows, key=lambda row: said(row, stored.markdown_name))
        ]
        return [f"Lowest loss at {'; '.join(parts)} ({rests_on(stored)}; {together(rows[0].comparisons)})."]


METRIC = Best()


def said(row: BestRow, name: Callable[[str], str] = str) -> str:
    """Names a row's schedule, and the schedules that are not significantly worse, or all others if all are worse.

    Args:
        name: a function that returns the shown name of a label.
    """
    if row.not_apart:
        return f"{name(row.schedule)}, not significantly below {listed(map(name, row.not_apart))}"
    return f"{name(row.schedule)}, significantly below {'every other' if len(row.apart) > 1 else name(row.apart[0])}"


# --- Shared by all conclusions: the level of intervals, and the number of documents needed


def level(stored: Stored) -> float:
    """Returns the level of each comparison's interval, at which all intervals of a run together have a level of 95%.

    With too few documents, no conclusion is drawn, and each interval is a 95% interval by itself.
    """
    return LEVEL if stored.comparisons is None else familywise(stored.comparisons)


def too_few(documents: int, what: str = "documents") -> str:
    """Returns a clause that there are too few documents for a conclusion; "" if there are enough.

    Args:
        what: the plural name of the documents.
    """
    if documents >= CONCLUSIVE:
        return ""
    return f"a verdict needs {CONCLUSIVE} {what}, and there {'is' if documents == 1 else 'are'} {documents}"


def together(comparisons: int | None) -> str:
    """Describes the level at which all intervals hold together."""
    if not comparisons or comparisons == 1:
        return f"{PERCENT} intervals"
    return f"{PERCENT} intervals for all {comparisons:,} comparisons together"


_ROUNDING = 0.001
"""Tolerance in nats above ln(vocabulary), for a model that predicts all tokens equally, with rounded logits."""


def worse_than_a_guess(stored: Stored) -> str:
    """Returns a warning if the unchanged model is worse than a uniform guess at the shortest length; else "".

    Also returns "" if the size of the vocabulary is unknown.
    """
    length = stored.lengths[0]
    found = [row.nll for row in perplexity.METRIC.rows(stored) if (row.schedule, row.length) == (AS_IS, length)]
    return guessing(found[0], length, stored.model.get("vocabulary")) if found else ""


def guessing(nll: float, length: int, vocabulary: int | None) -> str:
    """Returns a warning if a loss exceeds that of a uniform guess, ln(vocabulary); else "".

    Args:
        nll: the unchanged model's loss in nats per token, up to ``length``; NaN if there is none.
        vocabulary: the number of tokens in the model's vocabulary; None if unknown.
    """
    if not vocabulary or not nll > math.log(vocabulary) + _ROUNDING:
        return ""
    figures = f"perplexity {digits(exp(nll), 4)} at {length:,} tokens, against {vocabulary:,}"
    return (
        f"As it is, the model predicts this text worse than a uniform guess over its {vocabulary:,} tokens "
        f"({figures}). The weights or the tokenizer may not be its own, so no figure here shows which schedule is "
        "better."
    )
