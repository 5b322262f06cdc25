"""Perplexity of the key tokens alone: tokens that need long context, according to a fixed key model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...output.formatting import escaped
from ..data import key_tokens
from ..data.documents import Document
from ..data.key_tokens import KeySpans
from .base import Metric, Option, held, masked, perplexities, ppl_table
from .stored import Stored, sums_of


@dataclass(frozen=True)
class KeyTokensRow:
    """The perplexity of the key tokens under one schedule at one length.

    It is None without key tokens; its interval is None with fewer than five documents. ``documents`` and ``windows``
    count those with key tokens, and ``interval`` names its interval's sampling unit.
    """

    schedule: str
    length: int
    tokens: int
    fraction: float
    nll: float | None
    ppl: float | None
    ppl_low: float | None
    ppl_high: float | None
    documents: int
    windows: int
    interval: str | None


_SPANS = Option[KeySpans | None](
    "key_spans",
    Path,
    "Also measure the tokens that `ropescale keys` found.",
    read=lambda given: given if isinstance(given, KeySpans) else key_tokens.load(given),
    by_place=True,
)


class KeyTokens(Metric[Stored, KeyTokensRow]):
    """The perplexity of the tokens inside the key spans."""

    row, key, has_facts, called = KeyTokensRow, "key_tokens", True, "key tokens"
    options = (_SPANS,)

    def check(self, options: Mapping[str, Any], documents: Sequence[Document]) -> None:
        """Refuses documents that the key spans do not cover."""
        spans: KeySpans | None = options[_SPANS.name]
        if spans is not None:
            for document in documents:
                spans.marks(document)

    def is_planned(self, options: Mapping[str, Any]) -> bool:
        """Whether key spans are given."""
        return options[_SPANS.name] is not None

    def recalled(self, results: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the facts about the key spans, without the spans."""
        part = results.get(self.key)
        return {_SPANS.name: KeySpans({}, {name: part[name] for name in part if name != "rows"})} if part else {}

    def reduce(self, stored: Stored) -> list[KeyTokensRow]:
        """Returns a row for every schedule at every length."""
        spans = _SPANS.of(stored)
        if spans is None or not stored.documents:
            return []
        first = 0 if stored.bos else 1
        marks = [spans.marks(document)[first:] for document in stored.documents]
        rows = []
        for schedule, length in stored.read_from:
            losses = stored.losses(schedule, length)
            tokens, documents, windows, estimate = masked(stored, losses, marks)
            mean, share = estimate.mean if estimate else None, tokens / sum(sums_of(losses)[1])
            held_in, over = (documents, windows), estimate.over if estimate else None
            rows.append(KeyTokensRow(schedule, length, tokens, share, mean, *perplexities(estimate), *held_in, over))
        return rows

    def facts(self, stored: Stored) -> dict[str, object]:
        """Returns the facts about the key spans."""
        spans = _SPANS.of(stored)
        return spans.facts if spans else {}

    def to_markdown(self, stored: Stored) -> list[str]:
        """Returns the table, with the model and the windows that found the tokens."""
        rows, spans = self.rows(stored), _SPANS.of(stored)
        if spans is None or not rows:
            return []
        made, last = spans.made, rows[-1]
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
        return [title, ppl_table(stored, rows)]


METRIC = KeyTokens()
