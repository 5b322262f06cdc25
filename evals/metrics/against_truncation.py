"""Compares every schedule with truncation: the unchanged model on only the last tokens, up to its trained length.

The alternative to extending the context is to truncate a long text to its end. A schedule pays off if it predicts
better than truncation, on the tokens with more context than the trained length.
"""

from dataclasses import dataclass

import numpy as np

from ...files import Data
from ...output.formatting import Page
from ..facts import PerWindow, Truncation
from ..statistics.intervals import Estimate
from .base import Metric, estimated, rests_on
from .cells import change_cell, table
from .stored import Stored, sums_of


@dataclass(frozen=True)
class TruncationRow:
    """A schedule against truncation at a length, on the tokens from the trained length on, in nats.

    ``delta_nll`` is the schedule's loss ``nll`` minus the
    loss of truncation, ``truncated_nll``, on the same tokens; if it is below zero, longer context is better. The
    interval is a 95% interval by itself; :class:`.verdicts.VerdictRow` has those that verdicts use, and far repeats.
    """

    schedule: str
    length: int
    tokens: int
    nll: float
    truncated_nll: float
    delta_nll: float
    low: float | None
    high: float | None
    interval: str | None
    documents: int

    @property
    def change(self) -> Estimate:
        """The schedule's loss minus truncation's, with its interval."""
        return Estimate(self.delta_nll, self.low, self.high, self.interval)


class AgainstTruncation(Metric[Stored, TruncationRow]):
    """The comparison of every schedule with truncation, on tokens with more context than the trained length."""

    row = TruncationRow
    key = "truncation"
    has_facts = True
    columns = {  # noqa: RUF012
        "truncated_nll": "truncated_nll",
        "truncation_delta": "delta_nll",
        "truncation_low": "low",
        "truncation_high": "high",
    }

    def reduce(self, stored: Stored) -> list[TruncationRow]:
        """Returns a row for every schedule at every length beyond the trained one."""
        last = stored.truncation
        if last is None:
            return []
        rows = (_row(stored, last, *key) for key in stored.read_from if key[1] > last.length)
        return [row for row in rows if row]

    def facts(self, stored: Stored) -> Data:
        """Returns truncation's context, the number of tokens that each of its windows scores, and of all fed ones."""
        last = stored.truncation
        return {"context": last.length, "stride": last.stride, "fed": last.positions} if last else {}

    def to_markdown(self, stored: Stored) -> Page:
        """Returns the changes at every length."""
        rows = self.rows(stored)
        last = stored.truncation
        if not rows or not last:
            return []
        title = (
            f"Against truncation, the model without ropescale's scaling on only the last {last.length:,} tokens "
            f"(windows of {last.length:,} positions, stride {last.stride:,}, {last.positions:,} tokens fed): "
            f"change in NLL on the tokens from position {last.length:,} on (nats per token; below zero, the "
            f"schedule is better; {rests_on(stored)}):"
        )
        cells = [(stored.named(row.schedule), row.length, change_cell(row.change)) for row in rows]
        cells += [("(NLL of truncation)", row.length, f"{row.truncated_nll:.4f}") for row in rows]
        return [title, table("against truncation", cells)]


METRIC = AgainstTruncation()


def past(stored: Stored, last: Truncation, schedule: str, length: int) -> tuple[PerWindow, PerWindow]:
    """Returns the losses of a schedule and of truncation on the same tokens, those from the trained length on."""
    ours = [each[last.length - 1 :] for each in stored.losses(schedule, length)]  # index 0 is position 1
    pairs = zip(ours, last.losses(length), strict=True)
    return ours, [np.where(np.isnan(one), np.nan, two) for one, two in pairs]


def _row(stored: Stored, last: Truncation, schedule: str, length: int) -> TruncationRow | None:
    """Returns a schedule's row; None if no token counts."""
    ours, theirs = past(stored, last, schedule, length)
    one = sums_of(ours)
    two = sums_of(theirs)
    tokens = sum(one.counts)
    if not tokens:
        return None
    apart = [a.astype(np.float64) - b for a, b in zip(ours, theirs)]
    change = estimated(stored, one.minus(two), np.concatenate(stored.of_texts(apart)[0]))
    return TruncationRow(
        schedule=schedule,
        length=length,
        tokens=tokens,
        nll=one.mean,
        truncated_nll=two.mean,
        delta_nll=change.mean,
        low=change.low,
        high=change.high,
        interval=change.over,
        documents=stored.texts_with(one.counts),
    )
