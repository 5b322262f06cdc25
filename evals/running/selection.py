"""The documents that are measured on, chosen and checked before any model is there."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from ...errors import DataError
from ..data import chats
from ..data import documents as data_documents
from ..data.chats import Given, Unread
from ..data.cutting import BUDGET, Cut, Cutter, Limits, Source
from ..data.documents import Document, Kind
from ..data.encoding import TextEncoder
from ..data.texts import Text
from ..data.windows import check_lengths, check_stride, check_windows, prefix
from ..metrics import METRICS, OPTIONS
from ..metrics.stored import DataFacts, ShareFacts
from ..statistics import intervals
from ..statistics.intervals import LEAST_WINDOWS
from .options import TextOptions
from .progress import Notes

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from ..data.sources import TextSource

_POSITIVE = "batch_tokens logits_bytes max_docs budget_tokens truncation_stride".split()


@dataclass(frozen=True)
class PerplexityOptions(TextOptions):
    """The options of a measurement.

    Attributes:
        stride: None measures the first L positions of each document; a number measures whole documents in sliding
            windows of L positions, each this many tokens after the one before. Of a prompt with its answer, that is the
            last tokens, as many as the largest length holds.
        min_tokens: skip documents with fewer tokens.
        max_docs: measure on at most this many documents; what comes after them is not read.
        score: "all" tokens of a chat, or the "assistant" tokens alone; see :mod:`ropescale.evals.data.chats`.
        windows: of each document, a number, or "all" that it holds; evenly spaced if it holds more, and 1 is the first.
            None is as many as ``budget_tokens`` allows.
        budget_tokens: positions fed under one schedule, shared out over the documents, but at least one window of
            each. None is :data:`ropescale.evals.data.cutting.BUDGET`, or no limit where ``windows`` is given.
        split_special_tokens: as for :func:`ropescale.evals.data.documents.tokenize`.
        batch_tokens: feed windows together up to this many positions (at least one window); None estimates what
            fits into memory.
        logits_bytes: budget for one block of fp32 logits.
        short_context: compare each schedule's predictions with the baseline's at the largest length up to the trained
            one, which takes each of them, and the baseline, once more through the model at that length.
        truncation: measure the model given only its last tokens, too; None does where that costs no more than the rest.
        truncation_stride: the tokens that each of its windows scores; this asks for it.
        seed: kept with the results; nothing is drawn at random, so no figure depends on it.
        of_metrics: the values of the options that metrics declare, by name; :meth:`of` takes them as keywords.
        patching: keyword arguments of :func:`ropescale.patch` for every schedule, such as ``layers`` or ``on_top``.
        source: the name of the documents in the results.
        path: the checkpoint's folder, whose files are then fingerprinted; else the live parameters are.
        progress: notes on stderr, and a bar where that is a terminal, else a line a minute.
    """

    stride: int | None = None
    short_context: bool = True
    seed: int = 0
    of_metrics: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, options: Mapping[str, Any], **more: Any) -> PerplexityOptions:
        """Returns the options of a measurement; those of metrics stand among the others."""
        own = {name: value for name, value in options.items() if name not in OPTIONS}
        return cls(**own, **more, of_metrics={name: options[name] for name in OPTIONS if name in options})

    def __post_init__(self) -> None:
        values = {name: option.value(self.of_metrics.get(name)) for name, option in OPTIONS.items()}
        object.__setattr__(self, "of_metrics", values)
        if self.score not in chats.SCORES:
            raise DataError(f"score {self.score!r} is none of {', '.join(chats.SCORES)}", "score")
        self._check_windows()
        self._check_truncation()
        for name in _POSITIVE:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise DataError(f"{name} must be 1 or more, not {value}")

    def _check_windows(self) -> None:
        """Refuses windows that cannot be, or that nobody would feed."""
        object.__setattr__(self, "windows", check_windows(self.windows))
        given = [name for name in ("windows", "budget_tokens") if getattr(self, name) not in (None, 1)]
        if self.stride is not None and given:
            raise DataError(
                f"{given[0]} is given, and a stride slides over whole documents; leave one of the two out",
                given[0],
                "stride",
            )

    def _check_truncation(self) -> None:
        """Refuses truncation beside windows that slide, and a stride of what is left out."""
        name = self.asks_truncation
        if self.truncation is False and name:
            raise DataError(f"{name} is given, and truncation is left out; drop one", name, "truncation")
        if self.stride is not None and name:
            raise DataError(f"{name} is for texts cut into windows, and stride slides; drop one", name, "stride")

    @property
    def asks_truncation(self) -> str:
        """The option that asks for truncation; "" for none."""
        return "truncation_stride" if self.truncation_stride is not None else "truncation" if self.truncation else ""

    @property
    def budget(self) -> int | None:
        """The positions fed under one schedule at most; None for no limit."""
        return BUDGET if self.budget_tokens is None and self.windows is None else self.budget_tokens


class Corpus:
    """The documents of a measurement.

    Attributes:
        lengths: ascending.
        documents: what is fed: the windows of the texts, in order, or with a stride the whole texts.
        windows: per text, how many of ``documents`` are from it.
        skipped: counts the texts that are not measured, by the reason.
        share: how much of the texts the windows hold, as results.json has it; empty if that is not known.
        bos: the id in front of every window, or None; ``bos_option`` is what was asked for.
        special: how many of the tokens are special ones of the tokenizer.
        source: the name of the documents in the results.

    Raises:
        DataError: no document is long enough, lengths or a stride that cannot be, or texts without a tokenizer.
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
        self.lengths, self.bos_option, self.options = check_lengths(lengths), bos, options
        self._silent = 0  # chats without a token of the assistant
        self.share: ShareFacts = {}
        turns = InTurn(cast(Mapping[str, Iterable[Given]], documents)) if isinstance(documents, Mapping) else None
        given = chats.sources_of(turns or cast(Iterable[Given], documents), tokenizer, options.score)
        if options.stride is None:
            cuts = self._cut(given, tokenizer)
            self.documents = [window for cut in cuts for window in cut.windows]
            self.windows = [len(cut.windows) for cut in cuts]
            self.share = _share(cuts)
        else:
            self.documents = self._whole(given, tokenizer)
            self.windows = [1] * len(self.documents)
        if turns is not None:
            self._mark_sources(turns)
        for metric in METRICS:
            metric.check(options.of_metrics, self.documents)
        self.special = data_documents.special_tokens(self.documents, tokenizer)
        self.source = options.source or (source.name if source else "in memory")
        if source and source.asked.left_out:
            self.skipped["no_text"] = len(source.asked.left_out)
            Notes.of(options.progress).tell(f"left out: {source.left_out}")

    def _mark_sources(self, read: InTurn) -> None:
        """Says of each document which source it is from, where there are several.

        Raises:
            DataError: nothing of a source is measured.
        """
        if len(read.sources) < 2:
            return
        self.documents = [replace(each, source=read.names[each.name]) for each in self.documents]
        for name in read.sources - {each.source for each in self.documents}:
            raise DataError(
                f"no document of {name} is measured: they are too short, copies of another source's, or beyond "
                "max_docs; leave it out, or use shorter lengths"
            )

    @property
    def has_bos(self) -> bool:
        """Whether BOS is in front of every window."""
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
        """The tokens that are scored at the longest length: BOS is not, nor what has nothing before it."""
        first = 0 if self.has_bos else 1
        stop = None if self.options.stride is not None else prefix(self.lengths[-1], self.has_bos).stop
        parts = (document.ids[first:stop] if document.scored is None else document.scored[first:stop].nonzero()[0]
                 for document in self.documents)  # fmt: skip
        return sum(map(len, parts))

    @property
    def facts(self) -> DataFacts:
        """The "data" part of results.json."""
        counts = {"special_tokens": self.special, "chats": self.count("chat"), "pretokenized": self.count("ids")}
        counts["prompts"] = self.count("prompt")
        facts: DataFacts = {
            "source": self.source,
            "sha256": self.sha256,
            "documents": len(self.windows),
            "windows": len(self.documents),
            "tokens": self.scored,
            "skipped": self.skipped,
        }
        return cast(DataFacts, {**facts, **self.share, **{name: count for name, count in counts.items() if count}})

    @property
    def interval(self) -> str:
        """The formula of intervals: over documents; over windows where documents are few and windows are not."""
        few = intervals.rests_on_windows(self.windows) and sum(self.windows) >= LEAST_WINDOWS
        return "t over blocks of consecutive windows" if few else "document-clustered t, skewness-corrected"

    def count(self, kind: Kind) -> int:
        """Counts the documents of a kind."""
        return sum(document.kind == kind for document in self.texts)

    def _cut(self, given: Iterable[Source], tokenizer: PreTrainedTokenizerBase | None) -> list[Cut]:
        """Cuts texts that reach the longest length into windows of it, the same for every length."""
        options = self.options
        given = self._fed(given, tokenizer)
        needed = tokens_needed(self.lengths, self.has_bos, options)
        size = prefix(self.lengths[-1], self.has_bos).stop
        each = options.windows if isinstance(options.windows, int) else None
        in_all = None if options.budget is None else max(1, options.budget // self.lengths[-1])
        by_place = any(each.by_place and options.of_metrics[name] != each.default for name, each in OPTIONS.items())
        limits = Limits(size, needed, each, in_all, placed=by_place)
        cutter = Cutter(limits, None if tokenizer is None else TextEncoder(tokenizer, options.split_special_tokens))
        cuts = cutter.cuts(given, options.max_docs)
        self.skipped = _counted(
            {name: cutter.skipped[name] for name in ("too_short", "empty")},
            without_assistant=self._silent,
            duplicates=cutter.skipped["duplicates"],
        )
        if not cuts:
            instead = "a smaller min_tokens" if needed == options.min_tokens else "shorter lengths"
            raise data_documents.too_short(cutter.longest, needed, instead)
        stops = {n: prefix(n, self.has_bos).stop for n in self.lengths}
        chats.answered([window for cut in cuts for window in cut.windows], stops)  # so that there is a figure at each
        return cuts

    def _fed(self, given: Iterable[Source], tokenizer: PreTrainedTokenizerBase | None) -> Iterable[Source]:
        """Decides on BOS, and takes it off documents that begin with it; these are read first, up to ``max_docs``."""
        given = iter(given)
        first = next(given, None)
        if not isinstance(first, Document):
            self.bos = data_documents.bos_id(self.bos_option, tokenizer)
            placed = (self._also(each, tokenizer) if isinstance(each, Document) else each for each in given)
            return [] if first is None else itertools.chain([first], placed)
        held = list(_until(itertools.chain([first], given), self.lengths[-1], self.options.max_docs))
        made = self._placed([each for each in held if isinstance(each, Document)], tokenizer)
        if self.bos is None and len(made) < len(held) and data_documents.bos_id(self.bos_option, tokenizer) is not None:
            raise data_documents.unequal_bos(first.name)
        first_only = self.options.windows == 1
        stops = {n: prefix(n, self.has_bos).stop if first_only else None for n in self.lengths}
        kept, self._silent = chats.answered(made, stops)
        return [*kept, *(each for each in held if not isinstance(each, Document))]

    def _also(self, document: Document, tokenizer: PreTrainedTokenizerBase | None) -> Document:
        """Returns a document beside texts, which have decided on BOS."""
        bos = self.bos
        (found,) = self._placed([document], tokenizer)
        if self.bos != bos:
            raise data_documents.unequal_bos(document.name)
        return found

    def _placed(self, documents: Sequence[Document], tokenizer: PreTrainedTokenizerBase | None) -> list[Document]:
        found, self.bos = data_documents.placed(documents, self.bos_option, tokenizer)
        return found

    def _whole(self, given: Iterable[Source], tokenizer: PreTrainedTokenizerBase | None) -> list[Document]:
        """Takes every document with a token to score, but one must reach the longest length, or nothing would be
        measured there."""
        options = self.options
        check_stride(options.stride, self.lengths)
        split = options.split_special_tokens
        texts = list(given)
        known = texts if tokenizer is None else data_documents.tokenize(texts, tokenizer, split_special_tokens=split)
        pool = self._placed([each for each in known if isinstance(each, Document)], tokenizer)
        longest = prefix(self.lengths[-1], self.has_bos).stop
        pool = [
            each.part(max(0, len(each.ids) - longest), len(each.ids)) if each.kind == "prompt" else each
            for each in pool
        ]
        pool, duplicates = data_documents.distinct(pool)
        pool, silent = chats.answered(pool, dict.fromkeys(self.lengths))
        kept, skipped = data_documents.select(
            pool,
            tokens_needed(self.lengths, self.has_bos, options),
            min_tokens=options.min_tokens,
            max_docs=options.max_docs,
            one_with=longest,
        )
        self.skipped = _counted(skipped, without_assistant=silent, duplicates=duplicates)
        return kept


def _counted(skipped: dict[str, int], **others: int) -> dict[str, int]:
    """Adds the reasons for which something was left out."""
    return skipped | {reason: number for reason, number in others.items() if number}


def _until(texts: Iterable[Source], tokens: int, most: int | None) -> Iterator[Source]:
    """Yields texts up to the ``most``-th that is a document of so many tokens; the same one again does not count."""
    found: set[str] = set()
    for each in texts:
        yield each
        if isinstance(each, Document) and len(each.ids) >= tokens and (each.scored is None or each.scored.any()):
            found.add(each.sha256)
        if len(found) == most:
            return


def _share(cuts: Sequence[Cut]) -> ShareFacts:
    """Says which share of the texts is measured, where that is known of all and in the same unit."""
    measured = [cut.measured for cut in cuts if cut.measured is not None]
    units = {"bytes" if cut.in_bytes else "tokens" for cut in cuts}
    whole = sum(cut.whole for cut in cuts)
    if len(measured) < len(cuts) or len(units) > 1 or not whole:
        return {}
    return {"measured": sum(measured), "whole": whole, "unit": units.pop(), "share": sum(measured) / whole}


def tokens_needed(lengths: Sequence[int], bos: bool, options: PerplexityOptions) -> int:
    """Counts the tokens that a document must have to be measured on."""
    window = prefix(lengths[-1], bos)
    return max(window.stop if options.stride is None else window.scored + 1, options.min_tokens)


# --- the documents of several sources, in turn


class InTurn:
    """An iterator over documents: the first of each source, then the second of each, as they are asked for.

    So where there is a limit, every source has as many below it as any other that does not end before.

    Args:
        sources: the documents of each source, by its name.

    Attributes:
        sources: the names of the sources.
        names: the source of each document that was read, by the document's name.
    """

    def __init__(self, sources: Mapping[str, Iterable[Given | Unread]]) -> None:
        if not sources:
            raise DataError("there is no source of documents; give at least one")
        self.sources, self.names = frozenset(sources), dict[str, str]()
        self._reading = self._in_turn(sources)

    def __iter__(self) -> Iterator[Unread]:
        return self._reading

    def _in_turn(self, sources: Mapping[str, Iterable[Given | Unread]]) -> Iterator[Unread]:
        left = {name: iter([texts] if isinstance(texts, (str, Text)) else texts) for name, texts in sources.items()}
        for number in itertools.count():
            for name in list(left):
                found = next(left[name], _END)
                if found is _END:
                    del left[name]
                else:
                    yield self._named(name, number, found)
            if not left:
                return

    def _named(self, source: str, number: int, given: Any) -> Unread:
        """Returns a document under a name that no other one has, and remembers its source."""
        name = f"{source} document {number}"
        made = chats.named(name, given)
        if made.name in self.names:
            made = replace(made, name=f"{source}: {made.name}")
        self.names[made.name] = source
        return made


_END = object()
