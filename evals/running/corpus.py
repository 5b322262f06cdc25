"""The documents of a measurement, which are selected and validated before a model is loaded."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from ...errors import DataError
from ..data import chats, documents as data_documents
from ..data.chats import Given, Unread
from ..data.documents import Document, Kind, Text, TextEncoder
from ..data.windows import Cutter, Limits, Source, check_lengths, check_stride, prefix, windows_by_document
from ..facts import DataFacts
from ..metrics import METRICS
from ..statistics import intervals
from ..statistics.intervals import LEAST_WINDOWS
from .options import PerplexityOptions

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from ..data.sources import TextSource


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
        documents: Iterable[Given] | Mapping[str, Iterable[Given]],
        lengths: int | str | Iterable[int | str],
        tokenizer: PreTrainedTokenizerBase | None,
        bos: str | int,
        options: PerplexityOptions,
        source: TextSource | None = None,
    ) -> None:
        self.lengths = check_lengths(lengths)
        self.bos_option = bos
        self.options = options
        self._tokenizer = tokenizer
        self.share: DataFacts = {}
        names: dict[str, str] = {}
        several = cast("Mapping[str, Iterable[Given]]", documents) if isinstance(documents, Mapping) else {}
        given = interleaved(several, names) if isinstance(documents, Mapping) else documents
        check_stride(options.stride, self.lengths)
        self._cut(chats.sources_of(given, tokenizer, options.score))
        if len(several) > 1:
            self.documents = [replace(each, source=names[each.name]) for each in self.documents]
            for name in several.keys() - {each.source for each in self.documents}:
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

    def part(self, windows: Sequence[int], lengths: Sequence[int], options: PerplexityOptions | None = None) -> Corpus:
        """Returns a corpus with only some windows of this one, and with other lengths.

        Args:
            windows: the numbers of the windows, ascending.
            options: the options of the part's measurement; None for the same.
        """
        part = copy.copy(self)
        part.lengths = tuple(lengths)
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
        return data_documents.documents_sha256(self.texts)

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
        counts = {
            "special_tokens": self.special,
            "chats": self.count("chat"),
            "pretokenized": self.count("ids"),
            "prompts": self.count("prompt"),
        }
        return {
            "source": self.source,
            "sha256": self.sha256,
            "documents": len(self.windows),
            "windows": len(self.documents),
            "tokens": self.scored,
            "skipped": self.skipped,
            **self.share,
            **{name: count for name, count in counts.items() if count},
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
        cuts = cutter.cuts(sources, options.max_docs)
        reasons = {"without_assistant": len(silent), "duplicates": cutter.skipped["duplicates"]}
        self.skipped = {name: cutter.skipped[name] for name in ("too_short", "empty")}
        self.skipped |= {reason: number for reason, number in reasons.items() if number}
        if not cuts:
            if not cutter.skipped["too_short"]:
                chats.check_scored(silent, self._stops)
            instead = "a smaller min_tokens" if limits.needed == options.min_tokens else "shorter lengths"
            raise data_documents.too_short(cutter.longest, limits.needed, instead)
        self.documents = [window for cut in cuts for window in cut.windows]
        self.windows = [len(cut.windows) for cut in cuts]
        if options.stride is not None:
            name, tokens = max(((each.name, len(each.ids)) for each in self.documents), key=lambda each: each[1])
            if tokens < longest.stop:  # no document reaches the longest length
                raise data_documents.too_short((name, tokens), longest.stop)
            return
        chats.check_scored(self.documents, self._stops)  # so that every length has a result
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
            if isinstance(each, Document):
                source, bos = data_documents.placed(each, self.bos_option, self._tokenizer)
            else:
                source = each
                bos = data_documents.bos_id(self.bos_option, self._tokenizer)
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


# --- Interleaving documents of several sources


def interleaved(sources: Mapping[str, Iterable[Given | Unread]], names: dict[str, str]) -> Iterator[Unread]:
    """Yields documents lazily: the first one of every source, then the second one of every source, and so on.

    A limit on the number of documents thus takes equally many from all sources that have enough.

    Args:
        sources: the documents of each source, by its name.
        names: a dict to which the source of each document is added, by the document's name.
    """
    if not sources:
        raise DataError("there is no source of documents; give at least one")
    left: dict[str, Iterator[Given | Unread]] = {}
    for name, texts in sources.items():
        several = [texts] if isinstance(texts, (str, Text)) else texts
        left[name] = iter(several)
    for number in itertools.count():
        for source, texts in list(left.items()):
            try:
                made = chats.named(f"{source} document {number}", next(texts))
            except StopIteration:
                del left[source]
                continue
            if made.name in names:
                made = replace(made, name=f"{source}: {made.name}")
            names[made.name] = source
            yield made
        if not left:
            return
