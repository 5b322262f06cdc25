"""Compares every schedule with truncation: the unchanged model on only the last tokens, up to its trained length.

The alternative to extending the context is to truncate a long text to its end. A schedule pays off if it predicts
better than truncation, on the tokens with more context than the trained length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...output.formatting import markdown
from ..data.far_repeats import far_repeats
from ..facts import TRUNCATION, Truncation
from ..statistics.intervals import Estimate
from .base import Metric, estimated, rests_on
from .cells import EACH, change_cell, table
from .far_repeats import distance_of
from .stored import Stored, sums_of

ALL, FAR = "", "far_"
"""The token subsets, all tokens and far repeats, named by the prefixes of their fields in a row."""


@dataclass(frozen=True)
class TruncationRow:
    """A schedule against truncation at a length, on the tokens at positions [``context``, ``length``), in nats.

    ``context`` is the trained length, ``stride`` is the number of tokens that each window of truncation scores, and
    ``fed`` is the number of tokens fed in all of these windows. ``delta_nll`` is the schedule's loss ``nll`` minus the
    loss of truncation, ``truncated_nll``, on the same tokens; if it is below zero, longer context is better. The fields
    ``far_...`` are the same figures for far repeats. They are None if there are no far repeats, or if the distance of
    far repeats is unknown. Each interval is a 95% interval by itself; :class:`.verdicts.VerdictRow` has those that
    verdicts use.
    """

    schedule: str
    length: int
    context: int
    stride: int
    fed: int
    tokens: int
    nll: float
    truncated_nll: float
    delta_nll: float
    low: float | None
    high: float | None
    interval: str | None = None
    far_tokens: int = 0
    far_nll: float | None = None
    far_truncated_nll: float | None = None
    far_delta_nll: float | None = None
    far_low: float | None = None
    far_high: float | None = None
    far_interval: str | None = None
    documents: int | None = None
    far_documents: int | None = None

    def change(self, which: str = ALL) -> Estimate | None:
        """Returns the schedule's loss minus truncation's on a token subset; None if the subset is empty."""
        mean, low, high, over = (getattr(self, which + name) for name in ("delta_nll", "low", "high", "interval"))
        return None if mean is None else Estimate(mean, low, high, over)


class AgainstTruncation(Metric[Stored, TruncationRow]):
    """The comparison of every schedule with truncation, on tokens with more context than the trained length."""

    row, key, has_facts, called = TruncationRow, "truncation", True, "truncation"
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
        masks = far_masks(stored)
        beyond = [key for key in stored.read_from if key[1] > last.length]
        rows = (_row(stored, last, masks, *key) for key in beyond)
        return [row for row in rows if row]

    def facts(self, stored: Stored) -> dict[str, object]:
        """Returns the facts about truncation's windows."""
        return {name: getattr(self.rows(stored)[0], name) for name in ("context", "stride", "fed")}

    def to_markdown(self, stored: Stored) -> list[str]:
        """Returns the changes at every length, and the changes on far repeats at the longest length."""
        rows = self.rows(stored)
        if not rows:
            return []
        context, stride, fed = rows[0].context, rows[0].stride, rows[0].fed
        title = (
            f"Against truncation, the model without ropescale's scaling on only the last {context:,} tokens (windows "
            f"of {context:,} positions, stride {stride:,}, {fed:,} tokens fed): "
            f"change in NLL on the tokens from position {context:,} on (nats per token; below zero, reading further "
            f"is better; {rests_on(stored)}; {EACH}):"
        )
        cells = {(row.schedule, row.length): change_cell(row.change()) for row in rows}
        own = {(_OWN, row.length): f"{row.truncated_nll:.4f}" for row in rows}
        lengths = sorted({row.length for row in rows})
        found = table(lengths, "against truncation", {**cells, **own}, [*stored.schedules, _OWN], name=stored.named)
        return [title, found, *_on_far_repeats(stored, rows)]


METRIC = AgainstTruncation()


def truncated(stored: Stored) -> dict[tuple[str, int], Estimate]:
    """Returns the mean loss of truncation over all tokens of each length beyond the trained one.

    The tokens up to the trained length have the unchanged model's loss. The result is empty if truncation was not
    measured, or if the unchanged model does not have its training tables.
    """
    found = {}
    for length in stored.lengths:
        whole = stored.truncated(length)
        if whole and stored.truncation and length > stored.truncation.length:
            first = np.concatenate(stored.of_texts(whole)[0])
            found[TRUNCATION, length] = estimated(stored, sums_of(whole), first)
    return found


_OWN = "(its loss)"


def _on_far_repeats(stored: Stored, rows: list[TruncationRow]) -> list[str]:
    """Returns the table of far repeats at the longest length, or an empty list if there are no far repeats."""
    longest = max(row.length for row in rows)
    last = [row for row in rows if row.length == longest]
    if not last[0].far_tokens:
        return []
    header = [f"at {longest:,}", f"all tokens ({last[0].tokens:,})", f"far repeats ({last[0].far_tokens:,})"]
    lines = [[stored.markdown_name(row.schedule), change_cell(row.change()), change_cell(row.change(FAR))]
             for row in last]  # fmt: skip
    lines.append([_OWN, f"{last[0].truncated_nll:.4f}", f"{last[0].far_truncated_nll:.4f}"])
    back = f"The same change for far repeats, of text {distance_of(stored):,} or more tokens back"
    return [f"{back} ({rests_on(stored)}):", markdown(header, lines, right=(1, 2))]


Losses = list[np.ndarray]
"""Losses per window, NaN for tokens that do not count."""


def far_masks(stored: Stored) -> Losses | None:
    """Returns, per window, a mask of the far repeats from the trained length on; None if they are unknown."""
    last, distance = stored.truncation, distance_of(stored)
    if last is None or distance is None or not stored.documents:
        return None
    first = last.length - stored.bos
    return [far_repeats(document.ids, distance)[first:] for document in stored.documents]


def compared(
    stored: Stored, last: Truncation, masks: Losses | None, schedule: str, length: int
) -> dict[str, tuple[Losses, Losses]]:
    """Returns the losses of a schedule and of truncation on the same tokens, by token subset.

    Args:
        masks: the masks from :func:`far_masks`.
    """
    ours = [each[last.length - 1 :] for each in stored.losses(schedule, length)]  # index 0 is position 1
    theirs = [np.where(np.isnan(one), np.nan, two) for one, two in zip(ours, last.losses(length), strict=True)]
    found = {ALL: (ours, theirs)}
    if masks is not None:
        one, two = (
            [np.where(mask[: len(each)], each, np.nan) for each, mask in zip(losses, masks, strict=True)]
            for losses in (ours, theirs)
        )
        found[FAR] = one, two
    return found


def _row(stored: Stored, last: Truncation, masks: Losses | None, schedule: str, length: int) -> TruncationRow | None:
    """Returns a schedule's row; None if no token counts."""
    figures: dict[str, Any] = {}
    for which, (ours, theirs) in compared(stored, last, masks, schedule, length).items():
        figures |= {f"{which}{name}": value for name, value in _figures(stored, ours, theirs).items()}
    if "tokens" not in figures:
        return None
    return TruncationRow(schedule, length, last.length, last.stride, last.positions, **figures)


def _figures(stored: Stored, ours: list[np.ndarray], theirs: list[np.ndarray]) -> dict[str, object]:
    """Returns the figures of a row over the tokens whose losses are not NaN; empty if there are no such tokens."""
    one, two = sums_of(ours), sums_of(theirs)
    tokens = sum(one.counts)
    if not tokens:
        return {}
    apart = [a.astype(np.float64) - b for a, b in zip(ours, theirs, strict=True)]
    first = np.concatenate(stored.of_texts(apart)[0])
    change = estimated(stored, one.minus(two), first)
    return {
        "documents": stored.texts_with(one.counts),
        "tokens": tokens,
        "nll": one.mean,
        "truncated_nll": two.mean,
        "delta_nll": change.mean,
        "low": change.low,
        "high": change.high,
        "interval": change.over,
    }
