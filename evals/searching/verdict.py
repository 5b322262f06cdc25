"""Says whether a search gained anything, by the intervals of the held-out text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...output.formatting import listed
from ..metrics.cells import around, mark, signed
from .searched import AS_IS


@dataclass(frozen=True)
class ChangeRow:
    """The held-out loss under the found schedule minus that under another, paired by document, in nats per token."""

    schedule: str
    baseline: str
    length: int
    delta_nll: float
    low: float | None
    high: float | None
    interval: str | None

    @property
    def is_better(self) -> bool:
        """Whether the interval is below zero."""
        return self.high is not None and self.high < 0

    @property
    def standing(self) -> str:
        """How the found schedule stands to the other one, by the interval."""
        worse = self.low is not None and self.low > 0
        return "better than" if self.is_better else "worse than" if worse else "not told apart from"


def change_cell(row: ChangeRow) -> str:
    """Writes a change with its interval."""
    return f"{signed(row.delta_nll)}{around(row.delta_nll, row.low, row.high, sign='+')}{mark(row.interval)}"


def verdict(
    changes: Sequence[ChangeRow], target: int, start: str, *, unmoved: bool, kept: bool, held: str = "text"
) -> str:
    """Says whether the found schedule is better than what there is without a search, and what to use otherwise.

    The intervals at the target decide.

    Args:
        changes: the found schedule against where the search started, and against the model as it is where that is
            known.
        unmoved: whether the search found nothing better than its start.
        kept: whether the model's own table is kept for short text, which the start, used alone, would not do.
        held: what was held out, "text" or "prompts".
    """
    at = {row.baseline: row for row in changes if row.length == target}
    over, own = at[start], at.get(AS_IS)
    if over.low is None:
        return "Whether anything was gained is not known: one held-out document gives no interval. Give more documents."
    if own is not None and not own.is_better and own.delta_nll >= 0:
        return f"{_stands(own, 'the model as it is', held)}: nothing was gained. Use the model as it is."
    open_ = "" if own is None or own.is_better else f" {_undecided(own, held)}"
    instead = "" if kept else f" Use {start}."
    if unmoved:
        return f"Nothing did better on the held-out {held} than the start, {start}: nothing was gained.{instead}{open_}"
    if held == "prompts" and over.delta_nll < 0 and over.standing == "not told apart from":
        until = "" if kept else f", and use {start} until then"
        ask = f"so few prompts do not decide. Ask more with `ropescale passkey`{until}."
        return f"{_stands(over, start, held)}: {ask}{open_}"
    if not over.is_better:
        return f"{_stands(over, start, held)}: nothing was gained there{_elsewhere(changes, start)}.{instead}{open_}"
    also = f", and than the model as it is ({change_cell(own)})" if own and own.is_better else ""
    return f"{_stands(over, start, held)}{also}.{open_}"


def _undecided(own: ChangeRow, held: str) -> str:
    """Says that the mean is lower than that of the model as it is, and that its interval does not show it."""
    more, do = ("more documents or a larger budget", "does") if held == "text" else ("a larger budget", "do")
    these = "this text" if held == "text" else "these prompts"
    return (
        f"Whether it is better than the model as it is, {these} {do} not show ({change_cell(own)}): hold out more, "
        f"by {more}."
    )


def _stands(row: ChangeRow, name: str, held: str) -> str:
    token = "token" if held == "text" else "token of an answer"
    return (
        f"At {row.length:,} tokens of held-out {held} the found schedule is {row.standing} {name} ({change_cell(row)} "
        f"nats per {token})"
    )


def _elsewhere(changes: Sequence[ChangeRow], start: str) -> str:
    """Says at which other lengths it is better; nothing where it is at none."""
    lengths = [f"{row.length:,}" for row in changes if row.baseline == start and row.is_better]
    return f", though it is better at {listed(lengths)}" if lengths else ""
