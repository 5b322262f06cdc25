"""The figures of a reproduction as tables and pictures: the claims, and every arm at every length."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

from ...output.escaping import escaped
from ...output.formatting import markdown
from ..metrics.base import Metric, Picture
from ..metrics.cells import interval_cell
from ..results.stored import Measured
from . import plots
from .rows import FAILS, HOLDS, NOT_RUN, UNDECIDED, AnswersRow, ArmRow, ClaimRow

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
        rows, target = self.rows(stored), stored.protocol["target_length"]
        cells = {(_line(row), row.length): _cell(row.ppl, row.ppl_low, row.ppl_high) for row in rows}
        at_target = [row for row in rows if row.length == target]
        last = {
            f"far repeats at {target:,}": {_line(row): _cell(row.far_ppl) for row in at_target},
            f"nats from {target // 2:,} on": {_line(row): f"{row.tail_nll:.4f}" for row in at_target},
        }
        title = "Perplexity of the first L positions of each held-out text, with 95% intervals over texts:"
        return [title, _table(cells, last)]

    def has_picture(self, stored: Measured) -> bool:
        """Whether an arm was trained."""
        return any(row.step for row in self.rows(stored))


Line = tuple[str, str, int]
"""A line of a table: an arm, a schedule and the steps."""


def _line(row: ArmRow | AnswersRow) -> Line:
    return row.arm, row.schedule, row.step


def _cell(ppl: float | None, low: float | None = None, high: float | None = None) -> str:
    return "" if ppl is None else interval_cell(ppl, low, high)


def _table(cells: Mapping[tuple[Line, int], str], last: Mapping[str, Mapping[Line, str]]) -> str:
    """Returns a table: arms, schedules and steps down, lengths across, and the last columns."""
    lengths = sorted({length for _, length in cells})
    header = ["arm", "schedule", "steps", *(f"{length:,}" for length in lengths), *last]
    lines = [
        [escaped(line[0]), escaped(line[1]), f"{line[2]:,}"]
        + [cells.get((line, length), "") for length in lengths]
        + [column.get(line, "") for column in last.values()]
        for line in dict.fromkeys(line for line, _ in cells)
    ]
    return markdown(header, lines, right=range(2, len(header)))


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
        title = f"Questions answered by the taught model, of {rows[0].questions} about texts of L positions:"
        return [title, _table({(_line(row), row.length): f"{row.right}" for row in rows}, {})]


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
    counts = Counter(row.verdict for row in rows)
    words = {FAILS: "do not hold" if counts[FAILS] > 1 else FAILS, UNDECIDED: UNDECIDED, NOT_RUN: NOT_RUN}
    others = "".join(f", {counts[each]} {said}" for each, said in words.items() if counts[each])
    return f"{counts[HOLDS]} of {len(rows)} claims hold{others}"


ARMS, ANSWERS, CLAIMS = Arms(), Answers(), Claims()
METRICS = (CLAIMS, ARMS, ANSWERS)
