"""The metrics of a recommendation: every candidate, the finalists on the text that decides, and the answer."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ...output.escaping import code_span, escaped, sentence
from ...output.formatting import markdown
from ..metrics.base import Metric, Picture
from ..metrics.cells import around, digits, exp, interval_cell, signed
from ..statistics.intervals import PERCENT
from . import plots, wording
from .evidence import (
    AnswerRow,
    CandidateRow,
    CurveRow,
    Evidence,
    FinalistRow,
    Judged,
    LeftOutRow,
    RoundRow,
    on_front,
)
from .racing.measured import BEYOND, FAR, OTHERS

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_front(stored: Judged) -> Figure:
    """Draws every candidate by its loss at the target and at the trained length."""
    return plots.front(CANDIDATES.rows(stored), stored, ANSWER.rows(stored)[0].schedule)


def draw_finalists(stored: Judged) -> Figure:
    """Draws the finalists with their intervals, and their loss against length."""
    return plots.finalists(FINALISTS.rows(stored), CURVES.rows(stored), stored)


class Advice(Metric[Judged, AnswerRow]):
    """The recommendation, in one sentence and the command."""

    row, key = AnswerRow, "answer"

    def reduce(self, stored: Judged) -> list[AnswerRow]:
        """Returns one row."""
        return [wording.answer(stored.measured)]

    def to_markdown(self, stored: Judged) -> list[str]:
        """Returns the sentence, the command and what belongs to them."""
        (row,) = self.rows(stored)
        parts = [sentence(row.answer)]
        parts += [code_span(each) for each in (row.command, row.serve) if each]
        parts += [sentence(each) for each in (row.truncation, row.memory) if each]
        return parts


class Candidates(Metric[Judged, CandidateRow]):
    """Every candidate against YaRN's default, on the windows that it was measured on."""

    row, key = CandidateRow, "rows"
    picture = Picture("candidates.png", "Every candidate: at the target, and within the trained length", draw_front)

    def reduce(self, stored: Judged) -> list[CandidateRow]:
        """Returns one row per candidate, the best first."""
        evidence = stored.measured
        rows = [_candidate(evidence, each.spec) for each in evidence.lineup.candidates]
        front = on_front([(row.delta_target, row.delta_short) for row in rows])
        made = [CandidateRow(**{**vars(row), "front": is_on}) for row, is_on in zip(rows, front, strict=True)]
        return sorted(made, key=lambda row: row.delta)

    def has_picture(self, stored: Judged) -> bool:
        """Whether there is more than the model as it is."""
        return len(self.rows(stored)) > 1


class Finalists(Metric[Judged, FinalistRow]):
    """The finalists, and truncation, on the text that decides."""

    row, key = FinalistRow, "paired"
    picture = Picture("finalists.png", "The finalists on the text that decides", draw_finalists)

    def reduce(self, stored: Judged) -> list[FinalistRow]:
        """Returns one row for each, the recommended one first, then by loss."""
        evidence = stored.measured
        chosen = ANSWER.rows(stored)[0].schedule
        rows = [_finalist(evidence, each, chosen) for each in evidence.judged]
        return sorted(rows, key=lambda row: (row.schedule != chosen, row.delta))

    def to_markdown(self, stored: Judged) -> list[str]:
        """Returns one table."""
        rows = self.rows(stored)
        if len(rows) < 2:
            return []
        goal, (first, *_) = stored.protocol, rows
        header = [
            "schedule",
            f"perplexity at {goal['target_length']:,}",
            f"at {goal['trained_length']:,}",
            "difference (nats)",
            "beyond, far repeats",
            "others",
        ]
        lines = [[escaped(stored.named(row.schedule)), *cells(row)] for row in rows]
        chosen = escaped(stored.named(first.schedule))
        title = (
            f"On the text that decides ({goal['held_out_windows']:,} windows): the objective minus that of "
            f"{chosen}, with intervals that hold for all pairs together ({PERCENT}); and the mean "
            "loss in nats of the tokens beyond the trained length that repeat what is further back "
            f"({first.far_tokens:,}), and of the others:"
        )
        return [title, markdown(header, lines, right=range(1, len(header)))]

    def has_picture(self, stored: Judged) -> bool:
        """Whether there is something to compare."""
        return len(self.rows(stored)) > 1


class Curves(Metric[Judged, CurveRow]):
    """The loss of the finalists against length."""

    row, key = CurveRow, "curves"

    def reduce(self, stored: Judged) -> list[CurveRow]:
        """Returns a row for every finalist and length that was measured."""
        evidence = stored.measured
        found = []
        for label in evidence.judged:
            for length in evidence.objective.lengths:
                estimate = evidence.losses.estimate(label, evidence.held_out, length)
                if estimate.mean == estimate.mean:
                    found.append(CurveRow(label, length, estimate.mean, estimate.low, estimate.high))
        return found


class Rounds(Metric[Judged, RoundRow]):
    """The rounds of the race."""

    row, key = RoundRow, "rounds"

    def reduce(self, stored: Judged) -> list[RoundRow]:
        """Returns one row per round."""
        return [RoundRow(len(each.candidates), len(each.windows), len(each.kept)) for each in stored.measured.rounds]

    def to_markdown(self, stored: Judged) -> list[str]:
        """Returns one sentence."""
        rows = self.rows(stored)
        if not rows:
            return []
        steps = ", ".join(f"{row.candidates} on {row.windows} window{'s' * (row.windows != 1)}" for row in rows)
        fed, grid = stored.protocol["tokens_fed"], stored.protocol["grid_tokens"]
        return [
            f"Race: {steps}, in each round further ones; {fed:,} tokens fed in all, {fed / grid:.0%} of what every "
            "candidate on all the text would take."
        ]


class LeftOut(Metric[Judged, LeftOutRow]):
    """The schedules that were not tried."""

    row, key = LeftOutRow, "left_out"

    def reduce(self, stored: Judged) -> list[LeftOutRow]:
        """Returns one row for each."""
        return [LeftOutRow(name, why) for name, why in stored.measured.lineup.left_out.items()]

    def to_markdown(self, stored: Judged) -> list[str]:
        """Returns one paragraph."""
        rows = [f"{row.schedule} ({sentence(row.why)})" for row in self.rows(stored)]
        return [f"Not tried: {'; '.join(rows)}."] if rows else []


ANSWER, FINALISTS, CANDIDATES, CURVES = Advice(), Finalists(), Candidates(), Curves()

METRICS: tuple[Metric[Judged, Any], ...] = (ANSWER, FINALISTS, CANDIDATES, CURVES, Rounds(), LeftOut())


def _candidate(evidence: Evidence, label: str) -> CandidateRow:
    losses, goal = evidence.losses, evidence.objective
    within, usual = losses.measured(label), evidence.lineup.usual
    change = losses.difference(label, usual, within)
    target, short = (losses.difference(label, usual, within, column=each).mean for each in (goal.target, goal.short))
    return CandidateRow(
        schedule=label,
        baseline=usual,
        rounds=sum(label in each.candidates for each in evidence.rounds),
        windows=len(within),
        delta=change.mean,
        low=change.low,
        high=change.high,
        delta_target=target,
        delta_short=short,
        finalist=label in evidence.finalists,
        front=False,
        same=evidence.lineup.same.get(label, []),
    )


def _finalist(evidence: Evidence, label: str, chosen: str) -> FinalistRow:
    losses, goal, held_out = evidence.losses, evidence.objective, evidence.held_out
    at_target = losses.estimate(label, held_out, goal.target)
    change = losses.difference(label, chosen, held_out, evidence.level)
    beyond, far, others = (_known(losses.mean(label, held_out, column)) for column in (BEYOND, FAR, OTHERS))
    return FinalistRow(
        schedule=label,
        baseline=chosen,
        length=goal.target,
        nll=at_target.mean,
        ppl=exp(at_target.mean),
        ppl_low=None if at_target.low is None else exp(at_target.low),
        ppl_high=None if at_target.high is None else exp(at_target.high),
        short_ppl=exp(losses.mean(label, held_out, goal.short)),
        delta=change.mean,
        low=change.low,
        high=change.high,
        beyond=beyond,
        far=far,
        others=others,
        far_tokens=losses.tokens(held_out, FAR),
    )


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def cells(row: FinalistRow) -> list[str]:
    """Writes a finalist's perplexities, its difference, and the loss of far repeats and of the other tokens."""
    own = row.schedule == row.baseline
    change = "-" if own else f"{signed(row.delta)}{around(row.delta, row.low, row.high, sign='+')}"
    far, others = ("-" if each is None else f"{each:.3f}" for each in (row.far, row.others))
    ppl = interval_cell(row.ppl, row.ppl_low, row.ppl_high)
    return [ppl, digits(row.short_ppl, 4), change, far, others]
