"""The options that several kinds of run share."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ...request import RequestOptions
from ..data import chats
from ..scoring.batches import LOGITS_BYTES
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
