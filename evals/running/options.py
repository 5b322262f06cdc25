"""Options of several kinds of run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from inspect import signature
from typing import Any, Self

from ...errors import DataError
from ...request import RequestOptions, refuse_unknown
from ..data import chats
from ..data.cutting import BUDGET
from ..data.windows import check_windows
from ..metrics import OPTIONS
from ..scoring.batches import LOGITS_BYTES
from .progress import Notes


@dataclass(frozen=True)
class Schedules:
    """The schedules of a run in addition to ``as-is``, and their patching options.

    Attributes:
        given: specs or schedule objects.
        baseline: the baseline's spec; None for ``as-is``.
        patching: keyword arguments of :func:`ropescale.patch`.
    """

    given: Iterable[object] = ()
    baseline: object = None
    patching: RequestOptions = field(default_factory=RequestOptions)


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of every run, documented in :class:`PerplexityOptions`."""

    patching: RequestOptions = field(default_factory=RequestOptions)
    source: str | None = None
    path: str | os.PathLike[str] | None = None
    progress: bool | Notes = False

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """Builds the options from a public function's keywords, which :func:`check_keywords` has checked."""
        return cls(**options)


@dataclass(frozen=True, kw_only=True)
class TextOptions(RunOptions):
    """The options of reading and feeding texts, documented in :class:`PerplexityOptions`."""

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


_POSITIVE = "batch_tokens logits_bytes max_docs budget_tokens truncation_stride".split()


@dataclass(frozen=True)
class PerplexityOptions(TextOptions):
    """The options of a measurement.

    Attributes:
        stride: None measures the first L positions of each window; a number measures whole documents in sliding windows
            of L positions, this many tokens apart. A prompt with its answer is cut to its last tokens, as many as the
            largest length holds.
        min_tokens: skip documents with fewer tokens.
        max_docs: measure at most this many documents; later ones are not read.
        score: "all" tokens of a chat, or only the "assistant" tokens; see :mod:`ropescale.evals.data.chats`.
        windows: the number of windows per document, evenly spaced if it holds more (1 is its first), or "all". None is
            as many as ``budget_tokens`` allows.
        budget_tokens: positions fed per schedule, shared among the documents, with at least one window each. None is
            :data:`ropescale.evals.data.cutting.BUDGET`, or no limit if ``windows`` is given.
        split_special_tokens: as for :func:`ropescale.evals.data.documents.tokenize`.
        batch_tokens: the most positions to feed together (at least one window); None is an estimate of the most that
            fit into memory.
        logits_bytes: budget for one block of fp32 logits.
        short_context: compare each schedule's predictions with the baseline's at the largest length up to the trained
            one, which runs every schedule, and the baseline, once more at that length.
        truncation: also measure the model given only its last tokens; None does so if that costs no more than the rest.
        truncation_stride: the tokens that each window of truncation scores; implies ``truncation``.
        seed: stored with the results; nothing is random, so no figure depends on it.
        of_metrics: the values of the options that metrics declare, by name; :meth:`of` takes them as keywords.
        patching: keyword arguments of :func:`ropescale.patch` for every schedule, such as ``layers`` or ``on_top``.
        source: the name of the documents in the results.
        path: the checkpoint's folder, to hash its files; None hashes the live parameters.
        progress: print notes on stderr, with a bar on a terminal, or else a line per minute.
    """

    stride: int | None = None
    short_context: bool = True
    seed: int = 0
    of_metrics: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, options: Mapping[str, Any], **more: Any) -> Self:
        """Builds the options of a measurement from keywords, including those of metrics."""
        own = {name: value for name, value in options.items() if name not in OPTIONS}
        return cls(**own, **more, of_metrics={name: options[name] for name in OPTIONS if name in options})

    def __post_init__(self) -> None:
        values = {name: option.value(self.of_metrics.get(name)) for name, option in OPTIONS.items()}
        object.__setattr__(self, "of_metrics", values)
        if self.score not in chats.SCORES:
            raise DataError(f"score must be {' or '.join(chats.SCORES)}, not {self.score!r}", "score")
        object.__setattr__(self, "windows", check_windows(self.windows))
        given = [name for name in ("windows", "budget_tokens") if getattr(self, name) not in (None, 1)]
        if self.stride is not None and given:
            raise DataError(
                f"{given[0]} is given, and a stride slides over whole documents; leave one of them out",
                given[0],
                "stride",
            )
        name = self.asks_truncation
        if self.truncation is False and name:
            raise DataError(f"{name} is given, and truncation is left out; drop one", name, "truncation")
        if self.stride is not None and name:
            raise DataError(f"{name} applies to texts cut into windows, and a stride slides; drop one", name, "stride")
        for name in _POSITIVE:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise DataError(f"{name} must be 1 or more, not {value}")

    @property
    def asks_truncation(self) -> str:
        """The option that requests truncation; "" for none."""
        return "truncation_stride" if self.truncation_stride is not None else "truncation" if self.truncation else ""

    @property
    def budget(self) -> int | None:
        """The most positions to feed per schedule; None for no limit."""
        return BUDGET if self.budget_tokens is None and self.windows is None else self.budget_tokens


def check_keywords(
    function: Callable[..., object], options: type[RunOptions], given: Iterable[str], *more: str
) -> None:
    """Refuses an unknown keyword of a public function; ``more`` lists additional keywords.

    Raises:
        TypeError: a keyword is unknown; names it.
    """
    parameters = signature(function).parameters.values()
    own = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    known = [*own, *(each.name for each in fields(options)), *more]
    refuse_unknown(f"ropescale.evals.{function.__name__}", given, known)
