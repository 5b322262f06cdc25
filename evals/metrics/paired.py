"""The change in loss of every schedule against the baseline on the same tokens, and the cost at short lengths."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...output.formatting import Page, grid
from ..facts import Divergence
from ..statistics.intervals import Estimate
from .base import Metric, estimated, mean_of, rests_on
from .cells import around, change_cell, mark, table
from .far_repeats import distance_of
from .stored import Stored


@dataclass(frozen=True)
class PairedRow:
    """The NLL per token of a schedule minus the baseline's, on the same tokens, in nats.

    ``kl`` is the mean KL(baseline || schedule) over these tokens in nats, and ``top1`` is the share of tokens for which
    both predict the same most likely token. Both are None if predictions were not compared, such as beyond the trained
    length. Each interval is a 95% interval by itself; :class:`.verdicts.VerdictRow` has those that verdicts use.
    """

    schedule: str
    baseline: str
    length: int
    delta_nll: float
    low: float | None
    high: float | None
    kl: float | None = None
    kl_low: float | None = None
    kl_high: float | None = None
    top1: float | None = None
    top1_low: float | None = None
    top1_high: float | None = None
    interval: str | None = None

    @property
    def change(self) -> Estimate:
        """The change in NLL with its interval."""
        return Estimate(self.delta_nll, self.low, self.high, self.interval)


_COMPARED = "kl kl_low kl_high top1 top1_low top1_high".split()
"""Fields of the comparison of predictions, which only some lengths have."""


class Paired(Metric[Stored, PairedRow]):
    """The paired change against the baseline."""

    row = PairedRow
    key = "paired"
    columns = {  # noqa: RUF012
        "baseline": "baseline",
        "delta_nll": "delta_nll",
        "delta_low": "low",
        "delta_high": "high",
        **{name: name for name in _COMPARED},
    }

    def reduce(self, stored: Stored) -> list[PairedRow]:
        """Returns a row for every schedule except the baseline at every shared length."""
        others = [key for key in stored.read_from if key[0] != stored.baseline]
        rows = []
        for schedule, length in others:
            change = difference(stored, schedule, stored, stored.baseline, length)
            if change is not None:
                figures = (schedule, stored.baseline, length, change.mean, change.low, change.high)
                compared = dict(zip(_COMPARED, _compared(stored, schedule, length)))
                rows.append(PairedRow(*figures, **compared, interval=change.over))
        return rows

    def to_markdown(self, stored: Stored) -> Page:
        """Returns the table of changes at every length, and the short-context cost."""
        rows = self.rows(stored)
        if not rows:
            return []
        baseline = stored.markdown_name(stored.baseline)
        unit = "nats per token, below zero is better"
        title = f"Change in NLL against {baseline} on the same tokens ({unit}; {rests_on(stored)}):"
        cells = [(stored.named(row.schedule), row.length, change_cell(row.change)) for row in rows]
        return [title, table("change", cells), *_short_context(stored, rows)]


METRIC = Paired()


def difference(ours: Stored, schedule: str, theirs: Stored, baseline: str, length: int) -> Estimate | None:
    """Returns the NLL per token of one schedule minus another's; None if they did not score the same tokens."""
    measured = (schedule, length) in ours.read_from and (baseline, length) in theirs.read_from
    if not measured or not ours.same_tokens(theirs):
        return None
    one = ours.totals(schedule, length)
    other = theirs.totals(baseline, length)
    return estimated(ours, one.minus(other), ours.first(schedule, length) - theirs.first(baseline, length))


def _compared(stored: Stored, schedule: str, length: int) -> list[float | None]:
    """Returns the mean KL and the agreement over a row's tokens, each with its bounds; [] without a comparison."""
    found = _divergence(stored, schedule, length)
    if found is None:
        return []
    bounds = []
    for values, most in ((found.kl, math.inf), (found.same, 1.0)):
        mean = mean_of(stored, [each[: stored.at_most(length)] for each in stored.wanted(values)], most)
        bounds += [mean.mean, mean.low, mean.high] if mean else []
    return bounds


def _divergence(stored: Stored, schedule: str, length: int) -> Divergence | None:
    """Returns the comparison of predictions that covers a row's tokens, at the row's length or a longer one.

    A comparison at a longer length is used only if both lengths belong to the same pass.
    """
    both = [stored.read_from[label, length].lengths for label in (schedule, stored.baseline)]
    for made in stored.divergences:
        longer = length < made.length and all(made.length in lengths for lengths in both)
        if made.schedule == schedule and (made.length == length or (longer and not stored.sliding)):
            return made
    return None


def short_length(lengths: Iterable[int], trained: int | None) -> int | None:
    """Returns the largest length up to the trained one; None if there is none or the trained length is unknown."""
    return max((length for length in lengths if trained and length <= trained), default=None)


def _short_context(stored: Stored, rows: Sequence[PairedRow]) -> Page:
    """Returns a table of the cost within the trained length, or a sentence that explains why the cost is unknown.

    Empty if predictions were not compared, because the table of changes already has the change in loss.
    """
    trained = stored.trained_length
    if trained is None:
        repeats = ", and far repeats cannot be identified" if distance_of(stored) is None else ""
        return [f"The short-context cost is unknown{repeats}: the model's trained length is unknown."]
    short = short_length(stored.lengths, trained)
    if short is None:
        return [f"The short-context cost is unknown: no length up to the trained {trained:,} was measured."]
    shown = [row for row in rows if row.length == short]
    if all(row.kl is None for row in shown):
        return []
    header = ["schedule", f"cost at {short:,} (nats)", "mean KL (nats)", "same top-1"]
    lines = [[stored.markdown_name(row.schedule), *short_cells(row)] for row in shown]
    where = f"trained at {trained:,} tokens ({rests_on(stored)})"
    title = f"Short-context cost against {stored.markdown_name(stored.baseline)}, {where}:"
    return [title, grid(header, lines, right=range(1, len(header)))]


def short_cells(row: PairedRow) -> list[str]:
    """Formats the change, the mean KL and the agreement, each with its interval if known."""
    if row.kl is None or row.top1 is None:
        return [change_cell(row.change), "-", "-"]
    over = "" if row.kl_low is None else mark(row.interval)
    low = row.top1_low and 100 * row.top1_low
    high = row.top1_high and 100 * row.top1_high
    kl = f"{row.kl:z.4f}{around(row.kl, row.kl_low, row.kl_high)}{over}"
    top1 = f"{100 * row.top1:.2f}%{around(100 * row.top1, low, high, 2, unit='%')}{over}"
    return [change_cell(row.change), kl, top1]
