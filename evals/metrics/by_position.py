"""Loss by position, which shows the rise at the trained length that the perplexity of a prefix averages out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..data.windows import position_bins
from . import drawing
from .base import Metric, Picture, mean_of, reaching
from .stored import Stored

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CAPTION = "Loss by position"


@dataclass(frozen=True)
class PositionRow:
    """The mean NLL of tokens with ``start <= position < stop``.

    A token's position is the number of tokens before it, including BOS. If the schedule's tables depend on the length,
    all tokens were scored with the table for ``as_at`` tokens, the length of the pass. ``as_at`` is None if one table
    serves all lengths.
    """

    schedule: str
    start: int
    stop: int
    nll: float
    low: float | None
    high: float | None
    as_at: int | None = None


def draw(stored: Stored) -> Figure:
    """Draws the mean NLL of the tokens around each position from 16 on, with one line per schedule.

    If a schedule's tables depend on the length, its label names the length whose table was used.

    Raises:
        RopescaleError: matplotlib is not installed.
    """
    shown = bins_of(stored)

    def label_of(row: PositionRow) -> str:
        name = stored.named(row.schedule)  # the name is shortened, so that the length remains visible
        return name if row.as_at is None else f"{drawing.short(name, 22)}, table for {drawing.tokens(row.as_at)}"

    curves = {label_of(bins[0]): points_of(bins) for bins in shown.values()}
    title = f"Loss by position, in windows of {drawing.tokens(stored.lengths[-1])}" if stored.sliding else CAPTION
    return drawing.draw(stored, curves, title, axis_of(shown.values()), "loss (nats per token)")


def bins_of(stored: Stored) -> dict[str, list[PositionRow]]:
    """Returns the bins that are drawn, by schedule: those from position 16 on.

    The first tokens of a document are hard to predict under every schedule and would flatten the rest of the plot. They
    are drawn only if fewer than four bins remain without them.
    """
    rows = METRIC.rows(stored)
    shown = {schedule: [row for row in rows if row.schedule == schedule] for schedule in stored.schedules}
    for schedule, bins in shown.items():
        later = [each for each in bins if each.start >= 16]
        shown[schedule] = later if len(later) >= 4 else bins
    return shown


def points_of(bins: Iterable[PositionRow]) -> list[drawing.Point]:
    """Returns the points of a line of losses."""
    return [((each.start * each.stop) ** 0.5, each.nll, each.low, each.high) for each in bins]


def axis_of(shown: Iterable[Sequence[PositionRow]]) -> drawing.Axis:
    """Returns the axis of positions, with powers of two as ticks."""
    ends = [(bins[0].start, bins[-1].stop) for bins in shown if bins]
    first = min(start for start, _ in ends)
    last = max(stop for _, stop in ends)
    powers = [2**k for k in range(last.bit_length() + 1) if first <= 2**k <= last]
    return "position (tokens before)", powers or [first, last]


class ByPosition(Metric[Stored, PositionRow]):
    """Mean loss in position bins that grow by sqrt(2), from each schedule's longest pass."""

    row = PositionRow
    picture = Picture("loss_by_position.png", CAPTION, draw)

    def reduce(self, stored: Stored) -> list[PositionRow]:
        """Returns the bins of every schedule."""
        rows = []
        for schedule in stored.schedules:
            passes = [run for run in stored.passes if run.schedule == schedule]
            run = max(passes, key=lambda run: run.lengths[-1])
            as_at = run.lengths[-1] if len(passes) > 1 and not stored.sliding else None
            losses = stored.wanted(run.nll)
            for start, stop in position_bins(1 + max(map(len, run.nll), default=0)):
                if mean := mean_of(stored, reaching(losses, start, stop)):
                    rows.append(PositionRow(schedule, start, stop, mean.mean, mean.low, mean.high, as_at))
        return rows


METRIC = ByPosition()
