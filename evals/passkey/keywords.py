"""The keywords of :func:`ropescale.evals.retrieval`, for editors and type checkers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from ...request import RequestOptions
    from ..running.progress import Notes


class RetrievalKeywords(TypedDict, total=False):
    """The fields of :class:`.quiz.RetrievalOptions`, which says what they mean."""

    trials: int
    seed: int
    haystack: str | None
    threshold: float
    batch_tokens: int
    patching: RequestOptions
    source: str | None
    path: str | Path | None
    progress: bool | Notes
