"""The options that several kinds of run share."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from ...request import RequestOptions
from ..data import chats
from ..scoring.batches import LOGITS_BYTES
from .progress import Notes

if TYPE_CHECKING:
    from ...request import RequestOptions
    from ..data.key_tokens import KeySpans
    from .progress import Notes


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of every run; :class:`.selection.PerplexityOptions` says what they mean."""

    patching: RequestOptions = field(default_factory=lambda: RequestOptions())
    source: str | None = None
    path: str | Path | None = None
    progress: bool | Notes = False


@dataclass(frozen=True, kw_only=True)
class TextOptions(RunOptions):
    """How a text is read and fed; :class:`.selection.PerplexityOptions` says what they mean."""

    min_tokens: int = 0
    max_docs: int | None = None
    score: str = chats.ALL
    windows: int | str | None = None
    budget_tokens: int | None = None
    split_special_tokens: bool = False
    batch_tokens: int | None = None
    logits_bytes: int = LOGITS_BYTES
    truncation: bool | None = None
    truncation_stride: int | None = None


# --- the same as keywords of public functions, for editors and type checkers


class RunKeywords(TypedDict, total=False):
    """The fields of :class:`RunOptions`."""

    patching: RequestOptions
    source: str | None
    path: str | Path | None
    progress: bool | Notes


class TextKeywords(RunKeywords, total=False):
    """The fields of :class:`TextOptions`."""

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
    """The fields of :class:`.selection.PerplexityOptions`, which says what they mean, and the options of metrics.

    A metric's option need not be here; editors and type checkers know those that are.
    """

    stride: int | None
    short_context: bool
    seed: int
    repeat_distance: int | None
    key_spans: str | Path | KeySpans | None
