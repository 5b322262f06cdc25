"""Perplexity of the tokens that repeat distant context, and of all other tokens.

A token is a *far repeat* if the ``ORDER`` tokens that end with the token occur earlier in the document, and their last
occurrence ended at least ``distance`` tokens before. If ``distance`` is the trained length, that occurrence is outside
the trained window, and a model that looks further back can copy from it. A phrase that also occurs nearby is not a far
repeat.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...output.formatting import Page, grid
from ..checking import Length
from ..facts import TRUNCATION, PerWindow
from .base import Marked, Metric, Option, held, masked, perplexities
from .cells import interval_cell
from .stored import Stored

ORDER = 8
"""The number of repeated tokens, including the predicted one. Shorter repeats also occur by chance."""


def last_seen(ids: Sequence[int], order: int = ORDER) -> np.ndarray:
    """Returns, per token, the distance to the last earlier occurrence of the ``order`` tokens that end with the token.

    The distance is 0 if there is no such occurrence.

    Returns:
        int64 [tokens].
    """
    distances = np.zeros(len(ids), np.int64)
    if len(ids) < order:
        return distances
    gram = _numbered(np.asarray(ids, dtype=np.int64))
    size = 1
    while size < order:  # gives each n-gram a number, by its start; equal n-grams get the same number
        step = min(size, order - size)
        gram = _numbered(gram[:-step] * len(ids) + gram[step:])
        size += step
    by_gram = np.argsort(gram, kind="stable")  # equal n-grams are adjacent, in the order of the text
    same = gram[by_gram[1:]] == gram[by_gram[:-1]]
    later = by_gram[1:][same]
    earlier = by_gram[:-1][same]
    distances[later + order - 1] = later - earlier
    return distances


def _numbered(values: np.ndarray) -> np.ndarray:
    """Returns the number of each value among the different ones, int64."""
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def far_repeats(ids: Sequence[int], distance: int) -> np.ndarray:
    """Returns a mask of the far repeats, bool [tokens]."""
    return last_seen(ids) >= distance


@dataclass(frozen=True)
class RepeatsRow:
    """The perplexity of the far repeats and of all other tokens; see :mod:`ropescale.evals.metrics.far_repeats`.

    A perplexity is None if there are no such tokens, and its bounds are None with fewer than five documents.
    ``far_documents`` and ``far_windows`` are the numbers of documents and windows that contain far repeats, and
    ``far_interval`` and ``other_interval`` name the intervals' sampling units.
    """

    schedule: str
    length: int
    distance: int
    order: int
    far_tokens: int
    far_ppl: float | None
    far_low: float | None
    far_high: float | None
    other_tokens: int
    other_ppl: float | None
    other_low: float | None
    other_high: float | None
    far_documents: int
    far_windows: int
    far_interval: str | None
    other_interval: str | None


_DISTANCE = Option[int | None](
    "repeat_distance", Length, "The least distance of a far repeat (default: the trained length)."
)


def distance_of(stored: Stored) -> int | None:
    """Returns the distance of far repeats in tokens: the option's value, or else the trained length if known."""
    return _DISTANCE.of(stored) or stored.trained_length


def masks_of(stored: Stored, distance: int | None) -> PerWindow:
    """Returns, per window, a mask of the far repeats among the tokens with losses; empty if they are unknown."""
    if distance is None:
        return []
    first = 0 if stored.bos else 1
    return [far_repeats(document.ids, distance)[first:] for document in stored.documents]


class FarRepeats(Metric[Stored, RepeatsRow]):
    """The perplexity of far repeats and of all other tokens."""

    row = RepeatsRow
    key = "repeats"
    options = (_DISTANCE,)

    def reduce(self, stored: Stored) -> list[RepeatsRow]:
        """Returns a row for every schedule, and for truncation, at every length beyond the distance."""
        distance = distance_of(stored)
        if distance is None or distance >= max(stored.lengths, default=0):
            return []
        far = masks_of(stored, distance)
        if not far:
            return []
        rows = []
        for schedule, length in [*stored.read_from, *((TRUNCATION, length) for length in stored.truncated_losses)]:
            if length > distance:
                losses = stored.losses(schedule, length)
                repeats = masked(stored, losses, far)
                parts = _figures("far", repeats) | _figures("other", masked(stored, losses, [~mask for mask in far]))
                parts |= {"far_documents": repeats.documents, "far_windows": repeats.windows}
                rows.append(RepeatsRow(schedule, length, distance, ORDER, **parts))
        return rows

    def to_markdown(self, stored: Stored) -> Page:
        """Returns the table for the longest length, or an empty list if there are no far repeats."""
        rows = [row for row in self.rows(stored) if row.length == stored.lengths[-1] and row.far_tokens]
        if not rows:
            return []
        far = rows[0]
        tokens = far.far_tokens + far.other_tokens
        there = f"{far.far_tokens:,} of {tokens:,} at {far.length:,}{held(stored, far.far_documents, far.far_windows)}"
        title = (
            f"Far repeats, the tokens that complete a sequence of {far.order} tokens last seen {far.distance:,} or "
            f"more tokens earlier ({there}), and all other tokens:"
        )
        lines = [
            [
                stored.markdown_name(row.schedule),
                interval_cell(row.far_ppl, row.far_low, row.far_high, row.far_interval),
                interval_cell(row.other_ppl, row.other_low, row.other_high, row.other_interval),
            ]
            for row in rows
        ]
        return [title, grid(["perplexity", "far repeats", "others"], lines, right=(1, 2))]


METRIC = FarRepeats()


def _figures(which: str, found: Marked) -> dict[str, Any]:
    """Returns a row's figures for a token subset, by field name."""
    ppl, low, high = perplexities(found.loss)
    over = found.loss and found.loss.over
    figures = {"tokens": found.tokens, "ppl": ppl, "low": low, "high": high, "interval": over}
    return {f"{which}_{name}": value for name, value in figures.items()}
