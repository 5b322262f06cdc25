"""The keywords of :func:`ropescale.evals.retrieval`, for editors and type checkers."""

from __future__ import annotations

from ..running.keywords import RunKeywords


class RetrievalKeywords(RunKeywords, total=False):
    """The fields of :class:`.prompt_set.RetrievalOptions`, which says what they mean."""

    trials: int
    seed: int
    haystack: str | None
    prompt_field: str | None
    answer_field: str | None
    new_tokens: int | None
    max_prompts: int | None
    match: str | None
    threshold: float
    batch_tokens: int
