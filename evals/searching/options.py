"""The options of a search, checked before any text is read.

The keywords of :func:`ropescale.evals.search`, for editors and type checkers.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import DataError
from ...lengths import parse_length
from ..running.keywords import RunKeywords
from ..running.options import RunOptions
from ..running.selection import PerplexityOptions
from ..scoring.batches import LOGITS_BYTES
from .starting import NONE_WITHIN, NOTHING_HIDDEN, WITHIN, check_weight

TEXT, KEYS = OBJECTIVES = ("text", "keys")
"""What may be learned from: all tokens of a text, or the answers of prompts with a hidden key."""


@dataclass(frozen=True)
class SearchOptions(RunOptions):
    """The options of a search.

    Attributes:
        objective: "text", whose tokens all count, or "keys": prompts that ask for a hidden number, as ``ropescale
            passkey`` makes them, of whose tokens the answers alone count.
        budget_tokens: how many tokens may be fed in all, forward or with a gradient, held-out text included.
        seed: of the order of the windows, of the documents that are held out.
        numbers: how many numbers are searched: 4, or 2 (the factor and the scale).
        keep_short: two tables instead of one: the model's own up to the trained length, the found one beyond.
        engine: search what this engine computes; see ``ropescale export``.
        within: how much a token counts whose context is within the trained length; tokens beyond count 1. Of a text
            alone: keys are of the target length.
        haystack: of keys, the text that they are hidden in; None for generated sentences.
        max_docs: read at most this many documents.
        split_special_tokens: as for :func:`ropescale.evals.data.documents.tokenize`.
        logits_bytes: budget for one block of fp32 logits.
        patching: keyword arguments of :func:`ropescale.patch`, such as ``layers``.
        source: the name of the documents, or of the haystack.
        path: the checkpoint's folder, whose files are then fingerprinted; else the live parameters are.
        progress: notes on stderr, and a bar where that is a terminal, else a line a minute.
    """

    objective: str = TEXT
    budget_tokens: int = 500_000
    seed: int = 0
    numbers: int = 4
    keep_short: bool = False
    engine: str | None = None
    within: float = WITHIN
    haystack: str | None = None
    max_docs: int | None = None
    split_special_tokens: bool = False
    logits_bytes: int = LOGITS_BYTES

    def __post_init__(self) -> None:
        object.__setattr__(self, "budget_tokens", parse_length(self.budget_tokens))
        check_weight(self.within)
        self._check_objective()

    def _check_objective(self) -> None:
        """Refuses what the objective has no use for."""
        if self.objective not in OBJECTIVES:
            raise DataError(f"objective {self.objective!r} is none of {', '.join(OBJECTIVES)}", "objective")
        if self.objective == TEXT and self.haystack is not None:
            raise DataError(f"haystack is given, and {NOTHING_HIDDEN}", "haystack", "objective")
        if self.objective == KEYS and self.within != WITHIN:
            raise DataError(NONE_WITHIN, "within", "objective")
        for name in ("max_docs", "split_special_tokens") if self.objective == KEYS else ():
            if getattr(self, name):
                raise DataError(f"{name} is for documents, and the objective keys has none; drop it", name, "objective")

    def reading(self, windows: int, target: int) -> PerplexityOptions:
        """Returns how the text is read and cut, into so many windows."""
        return PerplexityOptions(
            budget_tokens=windows * target,
            max_docs=self.max_docs,
            split_special_tokens=self.split_special_tokens,
            logits_bytes=self.logits_bytes,
            source=self.source,
        )


class SearchKeywords(RunKeywords, total=False):
    """The fields of :class:`.options.SearchOptions`, which says what they mean."""

    objective: str
    budget_tokens: int
    seed: int
    numbers: int
    keep_short: bool
    engine: str | None
    within: float
    haystack: str | None
    max_docs: int | None
    split_special_tokens: bool
    logits_bytes: int
