"""The options of a measurement and its documents, which are checked and selected before a model is loaded."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ...errors import DataError
from ...files import sha256
from ...request import RequestOptions
from ..data import documents as data_documents
from ..data.chats import ALL, ASSISTANT, SCORES, Chat, Unread, has_template, rendered
from ..data.documents import Document, Kind, TextEncoder, check_scored
from ..data.prompts import PromptRow
from ..data.windows import BUDGET, Cutter, Limits, Source, check_stride, check_windows, prefix, windows_by_document
from ..facts import DataFacts
from ..metrics import METRICS, OPTIONS
from ..progress import Notes
from ..statistics import intervals
from ..statistics.intervals import LEAST_WINDOWS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from ..data.sources import TextSource


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
    score: str = ALL
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
        for name in self.of_metrics.keys() - OPTIONS.keys():
            raise DataError(f"no metric has an option {name!r}; there are {', '.join(OPTIONS)}", "metric_options")
        values = {name: option.value(self.of_metrics.get(name)) for name, option in OPTIONS.items()}
        object.__setattr__(self, "of_metrics", values)
        if self.score not in SCORES:
            raise DataError(f"score must be {' or '.join(SCORES)}, not {self.score!r}", "score")
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
    if not asked:
        return
    if trained is None:
        raise DataError(f"{asked} is given, but the model's trained length is unknown; drop {asked}", asked)
    if longest <= trained:
        raise DataError(
            f"{asked} is given, but no length is beyond the {trained:,} tokens that the model was trained with; give "
            f"a longer one, or drop {asked}",
            asked,
        )


class Corpus:
    """The documents of a measurement.

    Attributes:
        lengths: the lengths, ascending.
        documents: the fed documents: the windows of the texts, in order, or with a stride the full texts.
        windows: the number of ``documents`` from each text.
        skipped: the number of texts that are not measured, by reason.
        share: the share of the texts that is in the windows, as in results.json; empty if unknown.
        bos: the id before every window, or None; ``bos_option`` is the requested option.
        special: the number of special tokens.
        source: the name of the documents in the results.

    Raises:
        DataError: no document is long enough, lengths or a stride are invalid, or texts are given without a tokenizer.
    """

    def __init__(
        self,
        texts: Mapping[str, Iterable[Unread]],
        lengths: Sequence[int],
        tokenizer: PreTrainedTokenizerBase | None,
        bos: str | int,
        options: PerplexityOptions,
        source: TextSource | None = None,
    ) -> None:
        self.lengths = lengths
        self.bos_option = bos
        self.options = options
        self._tokenizer = tokenizer
        self._layouts: set[str] = set()
        self.share: DataFacts = {}
        names: dict[str, str] = {}
        check_stride(options.stride, lengths)
        self._cut(self._read(_interleaved(texts, names)))
        if len(texts) > 1:
            self.documents = [replace(each, source=names[each.name]) for each in self.documents]
            for name in texts.keys() - {each.source for each in self.documents}:
                raise DataError(
                    f"no document of {name} is measured: all are too short, copies of another source's documents, or "
                    "beyond max_docs; remove this source, or use shorter lengths"
                )
        for metric in METRICS:
            metric.check(options.of_metrics, self.documents)
        self.special = data_documents.special_tokens(self.documents, tokenizer)
        self.source = options.source or (source.name if source else "in memory")
        if source:
            for name, what in source.options.formats.items():
                options.notes.tell(f"{name}: {what}")
            if source.options.left_out:
                self.skipped["no_text"] = len(source.options.left_out)
                options.notes.tell(f"left out: {source.left_out}")
        for what in sorted(self._layouts):
            options.notes.tell(f"chats are {what} (--chat-template names one)")

    def part(self, windows: Sequence[int], lengths: Sequence[int], options: PerplexityOptions | None = None) -> Corpus:
        """Returns a corpus with only some windows of this one, and with other lengths.

        Args:
            windows: the numbers of the windows, ascending.
            options: the options of the part's measurement; None for the same.
        """
        part = copy.copy(self)
        part.lengths = lengths
        part.windows = windows_by_document(self.windows, windows)
        part.options = options or self.options
        part.documents = [self.documents[number] for number in windows]
        return part

    @property
    def has_bos(self) -> bool:
        """Whether BOS precedes every window."""
        return self.bos is not None

    @property
    def texts(self) -> list[Document]:
        """The first window of each text."""
        starts = itertools.accumulate([0, *self.windows[:-1]])
        return [self.documents[start] for start in starts]

    @property
    def sha256(self) -> str:
        """The hash of the texts' hashes, in order."""
        return sha256(b"".join(bytes.fromhex(text.sha256) for text in self.texts))

    @property
    def scored(self) -> int:
        """The number of tokens scored at the longest length, excluding BOS and tokens without context."""
        first = 0 if self.has_bos else 1
        stop = None if self.options.stride is not None else prefix(self.lengths[-1], self.has_bos).stop
        count = 0
        for document in self.documents:
            is_scored = document.scored
            count += len(document.ids[first:stop]) if is_scored is None else int(is_scored[first:stop].sum())
        return count

    @property
    def facts(self) -> DataFacts:
        """The "data" part of results.json."""
        others = {
            "special_tokens": self.special,
            "chats": self.count("chat"),
            "pretokenized": self.count("ids"),
            "prompts": self.count("prompt"),
            "layouts": sorted(self._layouts),
        }
        return {
            "source": self.source,
            "sha256": self.sha256,
            "documents": len(self.windows),
            "windows": len(self.documents),
            "tokens": self.scored,
            "skipped": self.skipped,
            **self.share,
            **{name: fact for name, fact in others.items() if fact},
        }

    @property
    def interval(self) -> str:
        """The name of the intervals' formula: over documents, or over blocks of windows if there are few documents."""
        few = intervals.rests_on_windows(self.windows) and sum(self.windows) >= LEAST_WINDOWS
        return "t over blocks of consecutive windows" if few else "document-clustered t, skewness-corrected"

    def refuse_small_budget(self) -> None:
        """Raises an error if the given budget is less than one window of each document.

        Raises:
            DataError: the budget is too small.
        """
        given = self.options.budget_tokens
        least = len(self.windows) * self.lengths[-1]
        if given is not None and given < least:
            raise DataError(
                f"budget_tokens is less than one window of each document, which takes {least:,} tokens; raise it, or "
                "measure fewer documents with max_docs",
                "budget_tokens",
                "max_docs",
            )

    def count(self, kind: Kind) -> int:
        """Returns the number of documents of a kind."""
        return sum(document.kind == kind for document in self.texts)

    def _read(self, texts: Iterable[Unread]) -> Iterator[Source]:
        """Renders chats and prompts lazily.

        Raises:
            DataError: there is no tokenizer to encode a document, a chat cannot be rendered, or the assistant's tokens
                are requested of a document that is not a chat.
        """
        tokenizer = self._tokenizer
        of_assistant = self.options.score == ASSISTANT
        for each in texts:
            if isinstance(each, Document):
                read: Source = each
            elif tokenizer is None:
                raise DataError(f"{each.name} is not token ids; give tokenizer= to encode it, or give token ids")
            elif isinstance(each, Chat):
                read = rendered(each, tokenizer, of_assistant)
                if not has_template(tokenizer):
                    self._layouts.add(each.layout)
            else:
                read = each.document(TextEncoder(tokenizer)) if isinstance(each, PromptRow) else each
            if of_assistant and read is each and getattr(read, "scored", None) is None:
                raise DataError(
                    f"the score {ASSISTANT!r} applies to chats, and {each.name} is not one; give messages, or leave it "
                    "out",
                    "score",
                )
            yield read

    def _cut(self, given: Iterable[Source]) -> None:
        """Cuts the texts that are long enough into windows of the longest length, which all lengths use.

        With a stride, uses whole documents that have a token to score, but only the last tokens of a prompt.
        """
        options = self.options
        tokenizer = self._tokenizer
        encoder = None if tokenizer is None else TextEncoder(tokenizer)
        silent: list[Document] = []
        self.bos = data_documents.bos_id(self.bos_option, tokenizer)
        sources = self._placed(given, silent)
        sources = itertools.chain(list(itertools.islice(sources, 1)), sources)  # determines BOS
        longest = prefix(self.lengths[-1], self.has_bos)
        if options.stride is None:
            per_text = options.windows if isinstance(options.windows, int) else None
            in_all = None if options.budget is None else max(1, options.budget // self.lengths[-1])
            limits = Limits(longest.stop, max(longest.stop, options.min_tokens), per_text, in_all)
        else:

            def whole(text: Source) -> Document:
                document = data_documents.encoded(text, encoder)
                start = max(0, len(document.ids) - longest.stop) if document.kind == "prompt" else 0
                return document.part(start, None)

            sources = map(whole, sources)
            limits = Limits(longest.scored + 1, max(longest.scored + 1, options.min_tokens), windows=1)
        cutter = Cutter(limits, encoder)
        cuts = []
        known = set[str]()
        stop = self._stops[self.lengths[-1]]
        for cut in cutter.cuts(sources, options.max_docs):
            fed = {sha256(np.array(window.ids[:stop]).tobytes()) for window in cut.windows}
            if fed <= known:  # the texts differ only after the fed tokens
                cutter.skipped["duplicates"] += 1
            else:
                cuts.append(cut)
            known |= fed
        reasons = {"without_assistant": len(silent), "duplicates": cutter.skipped["duplicates"]}
        self.skipped = {name: cutter.skipped[name] for name in ("too_short", "empty")}
        self.skipped |= {reason: number for reason, number in reasons.items() if number}
        if not cuts:
            if not cutter.skipped["too_short"]:
                check_scored(silent, self._stops)
            instead = "a smaller min_tokens" if limits.needed == options.min_tokens else "shorter lengths"
            raise data_documents.too_short(cutter.longest, limits.needed, instead)
        self.documents = [window for cut in cuts for window in cut.windows]
        self.windows = [len(cut.windows) for cut in cuts]
        if options.stride is not None:
            most = max(self.documents, key=lambda each: len(each.ids))
            if len(most.ids) < longest.stop:  # no document reaches the longest length
                raise data_documents.too_short((most.name, len(most.ids)), longest.stop)
            return
        check_scored(self.documents, self._stops)  # so that every length has a result
        fed = len(self.documents) * self.lengths[-1]
        if options.budget is not None and len(cuts) > 1 and fed > options.budget:
            options.notes.tell(
                f"one window of each of the {len(cuts):,} documents takes {fed:,} tokens per schedule, more than the "
                f"budget of {options.budget:,}; --max-docs (max_docs in Python) limits the number of documents"
            )
        measured = [cut.measured for cut in cuts if cut.measured is not None]
        in_bytes = {cut.in_bytes for cut in cuts}
        total = sum(cut.whole for cut in cuts)
        if len(measured) == len(cuts) and len(in_bytes) == 1 and total:
            part = sum(measured)
            unit = "bytes" if in_bytes.pop() else "tokens"
            self.share = {"measured": part, "whole": total, "unit": unit, "share": part / total}

    @property
    def _stops(self) -> dict[int, int | None]:
        """The number of a document's tokens within each length, or None for all tokens."""
        if self.options.stride is not None:
            return dict.fromkeys(self.lengths)
        return {n: prefix(n, self.has_bos).stop for n in self.lengths}

    def _placed(self, given: Iterable[Source], silent: list[Document]) -> Iterator[Source]:
        """Strips BOS from documents that start with it, and checks that all documents have the same BOS as the first.

        Args:
            silent: the list to which documents without a token to score are added; they are not yielded.
        """
        first = None
        for each in given:
            source, bos = data_documents.placed(each, self.bos_option, self._tokenizer)
            if first is None:
                first = each
                self.bos = bos
            elif bos != self.bos and not (isinstance(source, Document) and not len(source.ids)):
                name = (each if bos is None else first).name
                raise DataError(
                    f"the chat template writes no BOS in front of {name}, and other documents begin with one; put a "
                    "BOS before all of them, or before none",
                    "bos",
                )
            if isinstance(source, Document) and len(source.ids) and source.scored is not None:
                one_window = self.options.windows == 1 and self.options.stride is None
                if not source.scored[: self._stops[self.lengths[-1]] if one_window else None].any():
                    silent.append(source)
                    continue
            yield source


def _interleaved(texts: Mapping[str, Iterable[Unread]], names: dict[str, str]) -> Iterator[Unread]:
    """Yields documents lazily: the first one of every source, then the second one of every source, and so on.

    A limit on the number of documents thus takes equally many from all sources that have enough.

    Args:
        texts: the documents of each source, by its name.
        names: a dict to which the source of each document is added, by the document's name.
    """
    for row in itertools.zip_longest(*texts.values()):
        for source, each in zip(texts, row, strict=True):
            if each is not None:
                text = each
                if len(texts) > 1 and text.name in names:
                    text = replace(text, name=f"{source}: {text.name}")
                names[text.name] = source
                yield text
