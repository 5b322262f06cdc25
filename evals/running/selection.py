"""The documents that are measured on, chosen and checked before any model is there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

from ...errors import DataError
from ...request import RequestOptions
from ..data import chats, key_tokens, protocols
from ..data import documents as data_documents
from ..data.chats import Given
from ..data.documents import Document, Kind, Text
from ..data.key_tokens import KeySpans
from ..data.windows import check_lengths, check_stride, prefix
from ..parallel.processes import Team
from .progress import Notes
from .scoring import LOGITS_BYTES

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class PerplexityOptions:
    """The options of a measurement.

    Attributes:
        protocol: "ropescale", or one of the published recipes in :mod:`ropescale.evals.data.protocols`, which have
            a stride of their own where none is given.
        stride: None measures the first L positions of each document; a number measures whole documents in sliding
            windows of L positions, each this many tokens after the one before.
        min_tokens: skip documents with fewer tokens.
        max_docs: measure on at most this many documents.
        score: "all" tokens of a chat, or the "assistant" tokens alone; see :mod:`ropescale.evals.data.chats`.
        batch_tokens: feed windows together up to this many positions (at least one window); None estimates what
            fits into memory.
        logits_bytes: budget for one block of fp32 logits.
        short_context: compare each schedule's predictions with the baseline's at the largest length up to the trained
            one, which takes each of them, and the baseline, once more through the model at that length.
        seed: kept with the results; nothing is drawn at random, so no figure depends on it.
        repeat_distance: how many tokens back something must be for what repeats it to count as a far repeat; None is
            the trained length.
        key_spans: a file of `ropescale keys`, or its content: the perplexity of those tokens is given, too.
        patching: keyword arguments of :func:`ropescale.patch` for every schedule, such as ``layers`` or ``on_top``.
        source: the name of the documents in the results.
        path: the checkpoint's folder, whose files are then fingerprinted; else the live parameters are.
        progress: notes on stderr, and a bar where that is a terminal, else a line a minute.
        team: the processes that share each window, where one is too long for one device.
    """

    protocol: str = protocols.ROPESCALE
    stride: int | None = None
    min_tokens: int = 0
    max_docs: int | None = None
    score: str = chats.ALL
    batch_tokens: int | None = None
    logits_bytes: int = LOGITS_BYTES
    short_context: bool = True
    seed: int = 0
    repeat_distance: int | None = None
    key_spans: str | Path | KeySpans | None = None
    patching: RequestOptions = field(default_factory=lambda: RequestOptions())
    source: str | None = None
    path: str | Path | None = None
    progress: bool | Notes = False
    team: Team | None = None

    def __post_init__(self) -> None:
        if self.stride is None:
            object.__setattr__(self, "stride", protocols.protocol(self.protocol).stride)
        elif not self.exact and self.stride < 1:
            raise DataError(f"stride {self.stride} is not a whole number of tokens; use 1 or more")
        if self.key_spans is not None and not self.exact:
            raise DataError(
                f"key tokens are not part of {self.protocol}; leave key_spans or protocol out",
                "key_spans",
                "protocol",
            )
        if self.score not in chats.SCORES:
            raise DataError(f"score {self.score!r} is none of {', '.join(chats.SCORES)}", "score")
        if self.score == chats.ASSISTANT and not self.exact:
            raise DataError(f"{self.protocol} scores all tokens; leave score or protocol out", "score", "protocol")
        for name in ("batch_tokens", "logits_bytes", "max_docs", "repeat_distance"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise DataError(f"{name} must be 1 or more, not {value}")

    @property
    def sharers(self) -> int:
        """The number of processes that share a window."""
        return 1 if self.team is None else self.team.size

    @property
    def exact(self) -> bool:
        """Whether every token is scored once and weighs the same."""
        return protocols.protocol(self.protocol).exact


class Corpus:
    """The documents of a measurement.

    Attributes:
        lengths: ascending.
        documents: the measured ones, as they are fed; ``skipped`` counts the others by the reason.
        bos: the id in front of every window, or None; ``bos_option`` is what was asked for.
        bos_once: the id that is the first token of each document and in no other window, or None.
        special: how many of the tokens are special ones of the tokenizer.
        key_spans: where the key tokens lie, if that was asked for.

    Raises:
        DataError: no document is long enough, lengths or a stride that cannot be, or texts without a tokenizer.
    """

    def __init__(
        self,
        documents: Iterable[Given],
        lengths: int | str | Iterable[int | str],
        tokenizer: PreTrainedTokenizerBase | None,
        bos: str | int,
        options: PerplexityOptions,
    ) -> None:
        self.lengths, self.bos_option, self.options = check_lengths(lengths), bos, options
        given = data_documents.as_documents(_written(documents, tokenizer, options.score), tokenizer)
        pool, self.bos, self.bos_once = protocols.placed(options.protocol, given, bos, tokenizer)
        self.documents, self.skipped = self._selected(pool)
        spans = options.key_spans
        self.key_spans = spans if spans is None or isinstance(spans, KeySpans) else key_tokens.load(spans)
        if self.key_spans is not None:
            for document in self.documents:
                self.key_spans.marks(document)
        self.special = data_documents.special_tokens(self.documents, tokenizer)

    @property
    def has_bos(self) -> bool:
        """Whether BOS is in front of every window."""
        return self.bos is not None

    @property
    def positions(self) -> int:
        """The tokens of the documents that are looked at, each document with its BOS."""
        if self.options.stride is None:
            return len(self.documents) * self.lengths[-1]
        return sum(len(document.ids) + self.has_bos for document in self.documents)

    @property
    def scorable(self) -> int:
        """The tokens of the documents that have something before them."""
        return sum(len(document.ids) - (not self.has_bos) for document in self.documents)

    def count(self, kind: Kind) -> int:
        """Counts the documents of a kind."""
        return sum(document.kind == kind for document in self.documents)

    def _selected(self, pool: Sequence[Document]) -> tuple[list[Document], dict[str, int]]:
        """Selects the documents to measure on, and counts why others are skipped. Identical ones are taken once.

        Without a stride they are the ones that reach the longest length, the same for every length. Sliding windows
        take every document with a token to score, but one must reach the longest length, or nothing would be measured
        there.
        """
        options, bos = self.options, self.has_bos
        if options.exact:
            check_stride(options.stride, self.lengths)
        pool, duplicates = data_documents.distinct(pool)
        stops = {n: prefix(n, bos).stop if options.stride is None else None for n in self.lengths}
        pool, silent = chats.answered(pool, stops)
        kept, skipped = data_documents.select(
            pool,
            tokens_needed(self.lengths, bos, options),
            min_tokens=options.min_tokens,
            max_docs=options.max_docs,
            one_with=prefix(self.lengths[-1], bos).stop,
        )
        if not options.exact:
            protocols.check_windows(options.protocol, kept, self.lengths, options.stride or 1, bos)
        counted = {"without_assistant": silent, "duplicates": duplicates}
        return kept, skipped | {reason: number for reason, number in counted.items() if number}


def _written(
    documents: Iterable[Given], tokenizer: PreTrainedTokenizerBase | None, score: str
) -> list[Document | Text | str | Sequence[int]]:
    """Renders the chats among documents; one text alone is a list of one."""
    given: Iterable[Given] = [documents] if isinstance(documents, (str, Text)) else documents
    return cast(list[Document | Text | str | Sequence[int]], list(chats.written(given, tokenizer, score)))


def tokens_needed(lengths: Sequence[int], bos: bool, options: PerplexityOptions) -> int:
    """Counts the tokens that a document must have to be measured on."""
    window = prefix(lengths[-1], bos)
    return max(window.stop if options.stride is None else window.scored + 1, options.min_tokens)
