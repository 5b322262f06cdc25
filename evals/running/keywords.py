"""The keywords of :func:`ropescale.evals.perplexity` and of other runs, for editors and type checkers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from ...request import RequestOptions
    from ..data.key_tokens import KeySpans
    from .progress import Notes


class RunKeywords(TypedDict, total=False):
    """The fields of :class:`.options.RunOptions`."""

    patching: RequestOptions
    source: str | None
    path: str | Path | None
    progress: bool | Notes


class TextKeywords(RunKeywords, total=False):
    """The fields of :class:`.options.TextOptions`."""

    min_tokens: int
    max_docs: int | None
    score: str
    windows: int | str | None
    budget_tokens: int | None
    split_special_tokens: bool
    batch_tokens: int | None
    logits_bytes: int
    truncation: bool | None
    truncation_stride: int | None


class PerplexityKeywords(TextKeywords, total=False):
    """The fields of :class:`.selection.PerplexityOptions`, which says what they mean."""

    stride: int | None
    short_context: bool
    seed: int
    repeat_distance: int | None
    key_spans: str | Path | KeySpans | None
