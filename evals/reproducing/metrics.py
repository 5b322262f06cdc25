"""The figures of a reproduction as tables and pictures: the claims, and every arm at every length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

from ...output.escaping import escaped
from ...output.formatting import markdown
from ..metrics.base import Metric, Picture
from ..metrics.cells import interval_cell
from ..results.stored import Measured
from . import plots
from .rows import FAILS, HOLDS, VERDICTS, AnswersRow, ArmRow, ClaimRow

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_steps(stored: Measured) -> Figure:
    """Draws perplexity against steps, at the target and at the trained length."""
    return plots.steps(ARMS.rows(stored), stored)


def draw_claims(stored: Measured) -> Figure:
    """Draws every difference with its interval."""
    return plots.claims(CLAIMS.rows(stored))


class Arms(Metric[Measured, ArmRow]):
    """Perplexity of every arm."""

    row, key = ArmRow, "rows"
    columns = {each.name: each.name for each in fields(ArmRow)}  # noqa: RUF012
    picture = Picture("steps.png", "Perplexity against steps", draw_steps)

    def reduce(self, stored: Measured) -> list[ArmRow]:
        """Returns nothing: the rows come with the measurement, from the runs of the arms."""
        return []

    def to_markdown(self, stored: Measured) -> list[str]:
        """Returns one table: arms and steps down, lengths across."""
        rows = self.rows(stored)
        lengths = sorted({row.length for row in rows})
        cells = {(row.arm, row.schedule, row.step, row.length): _cell(row) for row in rows}
        target = stored.protocol["target_length"]
        far = {(row.arm, row.schedule, row.step): _far(row) for row in rows if row.length == target}
        tail = {(row.arm, row.schedule, row.step): f"{row.tail_nll:.4f}" for row in rows if row.length == target}
        last = [f"far repeats at {target:,}", f"nats from {target // 2:,} on"]
        header = ["arm", "schedule", "steps", *(f"{length:,}" for length in lengths), *last]
        lines = [
            [escaped(arm), escaped(schedule), f"{step:,}"]
            + [cells.get((arm, schedule, step, n), "") for n in lengths]
            + [each.get((arm, schedule, step), "") for each in (far, tail)]
            for arm, schedule, step in dict.fromkeys((row.arm, row.schedule, row.step) for row in rows)
        ]
        title = "Perplexity of the first L positions of each held-out text, with 95% intervals over texts:"
        return [title, markdown(header, lines, right=range(2, len(header)))]

    def has_picture(self, stored: Measured) -> bool:
        """Whether an arm was trained."""
        return any(row.step for row in self.rows(stored))


def _cell(row: ArmRow) -> str:
    return "" if row.ppl is None else interval_cell(row.ppl, row.ppl_low, row.ppl_high)


def _far(row: ArmRow) -> str:
    return "" if row.far_ppl is None else interval_cell(row.far_ppl, None, None)


class Answers(Metric[Measured, AnswersRow]):
    """The questions that every model answered."""

    row, key = AnswersRow, "answers"

    def reduce(self, stored: Measured) -> list[AnswersRow]:
        """Returns nothing: the rows come with the measurement, from the runs of the arms."""
        return []

    def to_markdown(self, stored: Measured) -> list[str]:
        """Returns one table: models and schedules down, lengths across."""
        rows = self.rows(stored)
        if not rows:
            return []
        lengths = sorted({row.length for row in rows})
        cells = {(row.arm, row.schedule, row.step, row.length): f"{row.right}" for row in rows}
        lines = [
            [escaped(arm), escaped(schedule), f"{step:,}", *(cells.get((arm, schedule, step, n), "") for n in lengths)]
            for arm, schedule, step in dict.fromkeys((row.arm, row.schedule, row.step) for row in rows)
        ]
        header = ["arm", "schedule", "steps", *(f"{length:,}" for length in lengths)]
        title = f"Questions answered by the taught model, of {rows[0].questions} about texts of L positions:"
        return [title, markdown(header, lines, right=range(2, len(header)))]


class Claims(Metric[Measured, ClaimRow]):
    """The claims and their verdicts."""

    row, key = ClaimRow, "claims"
    picture = Picture("claims.png", "The claims", draw_claims)

    def reduce(self, stored: Measured) -> list[ClaimRow]:
        """Returns nothing: the rows come with the measurement, from the runs of the arms."""
        return []

    def to_markdown(self, stored: Measured) -> list[str]:
        """Returns how many hold, and the table."""
        rows = self.rows(stored)
        lines = [[escaped(row.text), escaped(row.source), row.verdict, escaped(row.figures)] for row in rows]
        title = (
            "Differences are in nats per token on the same tokens, with 95% intervals over texts, and of retrieval the "
            "share of the same questions that are missed; below zero the first is better:"
        )
        return [f"{summary(rows)}.", title, markdown(["claim", "from", "here", "figures"], lines)]

    def has_picture(self, stored: Measured) -> bool:
        """Whether anything was compared."""
        return any(row.estimates for row in self.rows(stored))


def summary(rows: Sequence[ClaimRow]) -> str:
    """Returns how many claims have each verdict."""
    counts = {each: sum(row.verdict == each for row in rows) for each in VERDICTS}
    several = {FAILS: "do not hold"}
    words = {each: several.get(each, each) if count > 1 else each for each, count in counts.items()}
    others = "".join(f", {count} {words[each]}" for each, count in counts.items() if count and each != HOLDS)
    return f"{counts[HOLDS]} of {len(rows)} claims hold{others}"


ARMS, ANSWERS, CLAIMS = Arms(), Answers(), Claims()
METRICS = (CLAIMS, ARMS, ANSWERS)
