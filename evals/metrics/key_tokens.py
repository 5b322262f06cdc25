"""Perplexity of the key tokens alone: tokens that need long context, according to a fixed key model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...output.formatting import escaped
from ..checking import Count, Length, Positive, Share
from .base import Bounded, Metric, bounds, held, masked, perplexities
from .cells import interval_cell, table
from .stored import Stored, sums_of


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
        by = (
            f"by {escaped(model)} with the whole text against {made['window']:,} tokens"
            if "window" in made
            else "imported"
        )
        title = (
            f"Key tokens ({last.tokens:,}, {last.fraction:.2%} of all, at {last.length:,}"
            f"{held(stored, last.documents, last.windows)}), {by}:"
        )
        return [title, table(stored.lengths, "perplexity", cells, stored.schedules, name=stored.named)]

    def subset(self, row: KeyTokensRow) -> dict[str, Bounded | None]:
        """Returns the perplexity of the key tokens."""
        return {"key": bounds(row.ppl, row.ppl_low, row.ppl_high, row.interval)}


METRIC = KeyTokens()
