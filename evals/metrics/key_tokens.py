"""Perplexity of the key tokens, which need long context according to a fixed key model."""

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

    The perplexity is None if there are no key tokens, and its bounds are None with fewer than five documents.
    ``fraction`` is the share of key tokens among all scored tokens. ``documents`` and ``windows`` are the numbers of
    documents and windows that contain key tokens, and ``interval`` names the interval's sampling unit.
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
)


class KeyTokens(Metric[Stored, KeyTokensRow]):
    """The perplexity of the tokens inside the key spans."""

    row, key, has_facts = KeyTokensRow, "key_tokens", True
    options = (_SPANS,)

    def check(self, options: Mapping[str, Any], documents: Sequence[Document]) -> None:
        """Checks that the key spans cover the documents.

        Raises:
            DataError: the key spans do not cover a document.
        """
        spans: KeySpans | None = options[_SPANS.name]
        if spans is not None:
            for document in documents:
                spans.marks(document)

    def recalled(self, results: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the facts about the key spans from results.json, which does not contain the spans themselves."""
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
        """Returns the table of perplexities, with the key model and the context that the key tokens were found with."""
        rows, spans = self.rows(stored), _SPANS.of(stored)
        if spans is None or not rows:
            return []
        made, last = spans.made, rows[-1]
        model = Path(str(made.get("key_model", {}).get("path", "?"))).name
        title = (
            f"Key tokens ({last.tokens:,}, {last.fraction:.2%} of all, at {last.length:,}"
            f"{held(stored, last.documents, last.windows)}), by {escaped(model)} with the whole text "
            f"against {made['window']:,} tokens:"
        )
        return [title, ppl_table(stored, rows)]


METRIC = KeyTokens()
