"""Perplexity of the key tokens alone: tokens that need long context, according to a fixed key model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...output.escaping import escaped
from ..checking import Count, Length, Positive, Share
from ..data.key_tokens import KeySpans, places
from .base import Bounded, Metric, bounds, held, masked, perplexities
from .cells import interval_cell, table
from .stored import Stored, sums_of

ALPHA, BETA = 2.0, -2.0


@dataclass(frozen=True)
class KeyTokensRow:
    """The perplexity of the key tokens under one schedule at one length.

    It is None without key tokens; its interval is None with fewer than five documents. ``documents`` and
    ``windows`` count those that have key tokens, and ``interval`` says what its interval is over; None in a result
    of an older version.
    """

    schedule: str
    length: Length
    tokens: Count
    fraction: Share
    nll: float | None
    ppl: Positive | None
    ppl_low: Positive | None
    ppl_high: Positive | None
    documents: Count | None = None
    windows: Count | None = None
    interval: str | None = None


class KeyTokens(Metric[Stored, KeyTokensRow]):
    """The perplexity of the tokens inside the key spans."""

    row, key, subsets, has_facts = KeyTokensRow, "key_tokens", ("key",), True

    def reduce(self, stored: Stored) -> list[KeyTokensRow]:
        """Returns a row for every schedule at every length."""
        if stored.key_spans is None:
            return []
        first = 0 if stored.bos else 1
        marks = [stored.key_spans.marks(document)[first:] for document in stored.documents]
        rows = []
        for schedule, length in stored.read_from:
            losses = stored.losses(schedule, length)
            tokens, documents, windows, estimate = masked(stored, losses, marks)
            mean, share = estimate.mean if estimate else None, tokens / sum(sums_of(losses)[1])
            held_in, over = (documents, windows), estimate.over if estimate else None
            rows.append(KeyTokensRow(schedule, length, tokens, share, mean, *perplexities(estimate), *held_in, over))
        return rows

    def to_json(self, stored: Stored) -> dict[str, object]:
        """Returns the rows and the facts about the key spans; nothing without key spans."""
        if stored.key_spans is None:
            return {}
        rows = super().to_json(stored)[self.key]
        return {self.key: {**stored.key_spans.facts, "rows": rows}}

    def to_markdown(self, stored: Stored) -> list[str]:
        """Returns the table, with the model and the windows that found the tokens."""
        rows = self.rows(stored)
        if stored.key_spans is None or not rows:
            return []
        made, last = stored.key_spans.made, rows[-1]
        cells = {
            (row.schedule, row.length): interval_cell(row.ppl, row.ppl_low, row.ppl_high, row.interval) for row in rows
        }
        model = Path(str(made.get("key_model", {}).get("path", "?"))).name
        title = (
            f"Key tokens ({last.tokens:,}, {last.fraction:.2%} of all, at {last.length:,}"
            f"{held(stored, last.documents, last.windows)}), by {escaped(model)} with "
            f"{made.get('window', 0):,} positions against {made.get('short', 0):,}:"
        )
        return [title, table(stored.lengths, "perplexity", cells, stored.schedules, name=stored.named)]

    def subset(self, row: KeyTokensRow) -> dict[str, Bounded | None]:
        """Returns the perplexity of the key tokens."""
        return {"key": bounds(row.ppl, row.ppl_low, row.ppl_high, row.interval)}


METRIC = KeyTokens()


def key_tokens(short: np.ndarray, long: np.ndarray, alpha: float = ALPHA, beta: float = BETA) -> np.ndarray:
    """Marks the key tokens, bool, from the NLLs of the same tokens with short and with long context."""
    return (short - long > alpha) & (long < -beta)


def find(result: Stored, alpha: float = ALPHA, beta: float = BETA) -> KeySpans:
    """Returns the key spans from a measurement of the key model in short and in long sliding windows.

    Raises:
        DataError: the documents are token ids without a text.
    """
    short, long = [next(run for run in result.passes if n in run.lengths) for n in result.lengths]
    spans, found, scored = {}, 0, 0
    for document, one, other in zip(result.documents, short.nll, long.nll, strict=True):
        key = key_tokens(one, other, alpha, beta)
        starts, ends = (each[0 if result.bos else 1 :] for each in places(document))
        spans[document.sha256] = _joined(zip(starts[key].tolist(), ends[key].tolist(), strict=True))
        found, scored = found + int(key.sum()), scored + len(key)
    model = {name: result.model[name] for name in ("path", "weights", "config_sha256", "dtype")}
    windows = {"short": result.lengths[0], "window": result.lengths[1], "stride": result.protocol["stride"]}
    made = {"key_model": model, **windows, "bos": result.bos, "alpha": alpha, "beta": beta}
    return KeySpans(spans, made | {"key_tokens": found, "tokens": scored, "text_sha256": result.data["sha256"]})


def _joined(pieces: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Joins ranges that touch, and drops empty ones."""
    found: list[tuple[int, int]] = []
    for start, end in pieces:
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        elif end > start:
            found.append((start, end))
    return found
