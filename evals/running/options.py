"""Options of several kinds of run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ...errors import DataError
from ...request import RequestOptions
from ..data import chats
from ..data.windows import BUDGET, check_windows
from ..metrics import OPTIONS
from ..progress import Notes


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of every run, documented in :class:`PerplexityOptions`.

    Attributes:
        positive: the names of the options that must be 1 or more, or None.
    """

    positive: ClassVar = ("batch_tokens", "logits_bytes", "max_docs", "budget_tokens", "truncation_stride")

    patching: RequestOptions = field(default_factory=RequestOptions)
    source: str | None = None
    notes: Notes = field(default_factory=Notes)

    def __post_init__(self) -> None:
        for name in self.positive:
            value = getattr(self, name, None)
            if value is not None and value < 1:
                raise DataError(f"{name} must be 1 or more, not {value}")


@dataclass(frozen=True, kw_only=True)
class PerplexityOptions(RunOptions):
    """The options of a measurement.

    Attributes:
        stride: None measures the first L positions of each window. A number measures whole documents in sliding windows
            of L positions, this many tokens apart. Of a prompt with its answer, only the last tokens that fit into the
            largest length are measured.
        min_tokens: skip documents with fewer tokens.
        max_docs: measure at most this many documents; later documents are not read.
        score: "all" tokens of a chat, or only the "assistant" tokens; see :mod:`ropescale.evals.data.chats`.
        windows: the maximum number of windows per document, or "all". If a document has more windows, evenly spaced
            ones are used (with 1, the first). None uses as many as ``budget_tokens`` allows.
        budget_tokens: positions fed per schedule, shared among the documents; at least one window of each. None means
            :data:`ropescale.evals.data.windows.BUDGET`, or no limit if ``windows`` is given.
        batch_tokens: the maximum number of positions fed together; at least one window is fed. None estimates the
            number that fits into memory.
        logits_bytes: the memory for one block of fp32 logits, in bytes; None for that of the device.
        short_context: compare each schedule's predictions with the baseline's at the largest length up to the trained
            one. This runs every schedule and the baseline once more at that length.
        truncation: also measure the model given only the last tokens of the context. None does so if it costs at most
            as much as everything else.
        truncation_stride: the number of tokens that each window of truncation scores; implies ``truncation``.
        seed: stored with the results; nothing is random, so no result depends on it.
        of_metrics: the values of the options that metrics declare, by name.
        patching: keyword arguments of :func:`ropescale.patch` for every schedule, such as ``layers`` or ``on_top``.
        source: the name of the documents in the results.
        notes: the notes to the user.
    """

    stride: int | None = None
    min_tokens: int = 0
    max_docs: int | None = None
    score: str = chats.ALL
    windows: int | str | None = None
    budget_tokens: int | None = None
    batch_tokens: int | None = None
    logits_bytes: int | None = None
    short_context: bool = True
    truncation: bool | None = None
    truncation_stride: int | None = None
    seed: int = 0
    of_metrics: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        values = {name: option.value(self.of_metrics.get(name)) for name, option in OPTIONS.items()}
        object.__setattr__(self, "of_metrics", values)
        if self.score not in chats.SCORES:
            raise DataError(f"score must be {' or '.join(chats.SCORES)}, not {self.score!r}", "score")
        object.__setattr__(self, "windows", check_windows(self.windows))
        asked = self.asks_truncation
        if self.truncation is False and asked:
            raise DataError(f"{asked} is given, but truncation is False; drop one of the two", asked, "truncation")
        given = [name for name in ("windows", "budget_tokens") if getattr(self, name) is not None]
        for name in filter(None, [*given, asked]):
            if self.stride is not None:
                raise DataError(
                    f"{name} is given, but a stride measures whole documents in sliding windows; drop one of the two",
                    name,
                    "stride",
                )
        super().__post_init__()

    @property
    def asks_truncation(self) -> str:
        """The option that requests truncation, or ""."""
        if self.truncation_stride is not None:
            return "truncation_stride"
        return "truncation" if self.truncation else ""

    @property
    def budget(self) -> int | None:
        """The maximum number of positions to feed per schedule; None for no limit."""
        return BUDGET if self.budget_tokens is None and self.windows is None else self.budget_tokens


def refuse_impossible(asked: str, longest: int, trained: int | None) -> None:
    """Raises an error if truncation is requested and cannot be measured.

    Args:
        asked: the option that requests truncation, or "".
        longest: the largest measured length.
        trained: the trained length, if known.

    Raises:
        DataError: the trained length is unknown, or no length exceeds it.
    """
    if asked and trained is None:
        raise DataError(f"{asked} is given, but the model's trained length is unknown; drop {asked}", asked)
    if asked and trained is not None and longest <= trained:
        raise DataError(
            f"{asked} is given, but no length is beyond the {trained:,} tokens that the model was trained with; give "
            f"a longer one, or drop {asked}",
            asked,
        )
