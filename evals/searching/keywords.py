"""The keywords of :func:`ropescale.evals.search`, for editors and type checkers."""

from __future__ import annotations

from ..running.keywords import RunKeywords


class SearchKeywords(RunKeywords, total=False):
    """The fields of :class:`.options.SearchOptions`, which says what they mean."""

    objective: str
    budget_tokens: int
    seed: int
    numbers: int
    keep_short: bool
    engine: str | None
    within: float
    haystack: str | None
    max_docs: int | None
    split_special_tokens: bool
    logits_bytes: int
