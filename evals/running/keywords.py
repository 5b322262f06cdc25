"""The keywords of :func:`ropescale.evals.perplexity`, for editors and type checkers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from ...request import RequestOptions
    from ..data.key_tokens import KeySpans
    from ..parallel.processes import Team
    from .progress import Notes


class PerplexityKeywords(TypedDict, total=False):
    """The fields of :class:`.selection.PerplexityOptions`, which says what they mean."""

    protocol: str
    stride: int | None
    min_tokens: int
    max_docs: int | None
    windows: int | str | None
    budget_tokens: int | None
    split_special_tokens: bool
    score: str
    batch_tokens: int | None
    logits_bytes: int
    short_context: bool
    truncation: bool | None
    truncation_stride: int | None
    seed: int
    repeat_distance: int | None
    key_spans: str | Path | KeySpans | None
    patching: RequestOptions
    source: str | None
    path: str | Path | None
    progress: bool | Notes
    team: Team | None
