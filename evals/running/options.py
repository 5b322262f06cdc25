"""The options that several kinds of run share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from ...request import RequestOptions, refuse_unknown
from ..data import chats
from ..scoring.batches import LOGITS_BYTES
from .progress import Notes

if TYPE_CHECKING:
    from ..data.key_tokens import KeySpans


@dataclass(frozen=True)
class Schedules:
    """The schedules of a run beside ``as-is``, and how all of them are patched in.

    Attributes:
        given: specs or schedule objects.
        baseline: the spec that the others are compared with; None for ``as-is``.
        patching: keyword arguments of :func:`ropescale.patch`.
    """

    given: Iterable[object] = ()
    baseline: object = None
    patching: RequestOptions = field(default_factory=RequestOptions)


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of every run; :class:`.selection.PerplexityOptions` says what they mean."""

    patching: RequestOptions = field(default_factory=RequestOptions)
    source: str | None = None
    path: str | os.PathLike[str] | None = None
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


def check_keywords(
    function: Callable[..., object], options: type[RunOptions], given: Iterable[str], *more: str
) -> None:
    """Refuses a keyword that neither a public function nor its options have; ``more`` are further ones.

    Raises:
        TypeError: names it.
    """
    parameters = signature(function).parameters.values()
    own = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]
    known = [*own, *(each.name for each in fields(options)), *more]
    refuse_unknown(f"ropescale.evals.{function.__name__}", given, known)


# --- the same as keywords of public functions, for editors and type checkers


class RunKeywords(TypedDict, total=False):
    """The fields of :class:`RunOptions`."""

    patching: RequestOptions
    source: str | None
    path: str | os.PathLike[str] | None
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
