"""The keywords of :func:`ropescale.evals.search`, for editors and type checkers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from ...request import RequestOptions
    from ..running.progress import Notes


class SearchKeywords(TypedDict, total=False):
    """The fields of :class:`.options.SearchOptions`, which says what they mean."""

    objective: str
    method: str
    budget_tokens: int
    seed: int
    numbers: int | None
    keep_short: bool
    engine: str | None
    within: float
    haystack: str | None
    max_docs: int | None
    split_special_tokens: bool
    logits_bytes: int
    patching: RequestOptions
    source: str | None
    path: str | Path | None
    progress: bool | Notes
