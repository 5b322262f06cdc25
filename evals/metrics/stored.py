"""The stored numbers of a measurement: the loss of every token.

Every figure is computed from these numbers without a forward pass; see :mod:`ropescale.evals.metrics`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ...errors import DataError
from ...files import sha256
from ...output.formatting import escaped, suggest, visible
from ..data.documents import Document
from ..data.windows import prefix, windows_by_document
from ..facts import (
    AS_IS,
    REFERENCE,
    TRUNCATION,
    DataFacts,
    Divergence,
    Key,
    ModelFacts,
    Pass,
    PerWindow,
    Tables,
    Truncation,
)
from ..statistics import intervals
from ..statistics.intervals import LEVEL, Average, Estimate

T = TypeVar("T")


@dataclass(frozen=True)
class Identity:
    """Hashes of a document's text and of its tokens.

    Attributes:
        name, sha256: as in :class:`ropescale.evals.data.documents.Document`.
        ids_sha256: the hash of the tokens of all windows of the document, in order.
        scored: the ranges of these tokens whose losses count; None if all count.
        source: the document's source, if there are several sources.
        size: the number of tokens per window, if the document has several windows and ``scored``; else None.
    """

    name: str
    sha256: str
    ids_sha256: str
    scored: list[list[int]] | None = None
    source: str = ""
    size: int | None = None

    @classmethod
    def of(cls, windows: Sequence[Document]) -> Identity:
        """Returns the identity of a document from its windows."""
        marks = [each.scored for each in windows if each.scored is not None]
        scored = ranges_of(np.concatenate(marks)).tolist() if marks else None
        ids = [np.asarray(window.ids, "<i8") for window in windows]
        size = len(ids[0]) if marks and len(ids) > 1 else None
        return cls(
            windows[0].name,
            windows[0].sha256,
            sha256(b"".join(each.tobytes() for each in ids)),
            scored,
            windows[0].source,
            size,
        )


class Totals(NamedTuple):
    """The fp64 sum of losses and the number of tokens of each window."""

    sums: list[float]
    counts: list[int]

    @property
    def mean(self) -> float:
        """The mean loss per token over all windows."""
        return sum(self.sums) / sum(self.counts)

    def minus(self, other: Totals) -> Totals:
        """Returns the differences of the sums, for two sums over the same tokens."""
        return Totals([a - b for a, b in zip(self.sums, other.sums, strict=True)], self.counts)


@dataclass(repr=False)
class Measured:
    """A measurement of any kind, and its metrics.

    Attributes:
        model, data, protocol, versions: the parts of results.json with these names.
        figures: the rows of each metric by row class, computed or loaded once.
        unfinished: a sentence that the run stopped before its end; "" for a whole one.
    """

    model: ModelFacts
    data: DataFacts
    protocol: dict[str, Any]
    versions: dict[str, str]
    figures: dict[type, list[Any]] = field(default_factory=dict, init=False, compare=False)
    unfinished: str = field(default="", kw_only=True, compare=False)

    @property
    def short_names(self) -> dict[str, str]:
        """The short names of schedules that were read from files, by label."""
        return self.protocol.get("named", {})

    def named(self, label: str) -> str:
        """Returns the name of a schedule in tables and plots."""
        return visible(self.short_names.get(label, label))

    def markdown_name(self, label: str) -> str:
        """Returns the result of :meth:`named`, escaped for a line of Markdown."""
        return escaped(self.named(label))


@dataclass(repr=False)
class Stored(Measured):
    """The stored numbers of a finished (or interrupted) measurement.

    Attributes:
        passes: the forward passes with their losses.
        documents: the fed windows in order, or whole documents for sliding windows; empty in a loaded measurement.
        windows: the number of windows per document; empty if each document has one.
        bos: whether BOS preceded every window.
        baseline: the label of the baseline.
        trained_length: the model's trained context, if known; plots mark it.
        tables: the live rotary tables, by table_sha256 and layer type.
        divergences: the comparisons with the baseline's predictions at the largest length up to the trained one.
        truncation: the losses of the unchanged model on only the last tokens; None if they were not measured.
        options: the values of the metrics' options, by name; missing options have their defaults.
        identities: the hashes of the documents in a loaded measurement; else empty.
        whole: for the part of one source, :attr:`groups` of the whole measurement; None for a whole measurement.
    """

    passes: list[Pass]
    documents: list[Document]
    bos: bool
    baseline: str
    trained_length: int | None = None
    tables: Tables = field(default_factory=dict)
    divergences: list[Divergence] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    identities: list[Identity] = field(default_factory=list)
    windows: list[int] = field(default_factory=list)
    truncation: Truncation | None = None
    whole: int | None = None
    _totals: dict[Key, Totals] = field(default_factory=dict, init=False, compare=False)

    @property
    def groups(self) -> int:
        """The number of document groups with their own tables: all documents, and each source if there are several."""
        sources = len({each.source for each in self.identified})
        return self.whole or (1 + sources if sources > 1 else 1)

    @property
    def schedules(self) -> list[str]:
        """The labels of the schedules, in the order in which they ran."""
        return list(dict.fromkeys(run.schedule for run in self.passes))

    @property
    def ranked(self) -> list[str]:
        """The labels of what sentences may recommend: every schedule, but no reference."""
        return [label for label in self.schedules if not label.startswith(REFERENCE)]

    @property
    def lengths(self) -> list[int]:
        """The measured lengths, ascending."""
        return sorted({length for run in self.passes for length in run.lengths})

    @property
    def sliding(self) -> bool:
        """Whether full documents were scored in sliding windows, instead of their first L positions."""
        return self.protocol.get("stride") is not None

    @property
    def title(self) -> str:
        """The title of tables and plots."""
        if self.sliding:
            return f"Perplexity in sliding windows of L positions, stride {self.protocol['stride']:,}"
        first = "the first L positions" if max(self.windows, default=1) == 1 else "windows of L positions"
        return f"Perplexity of {first}"

    @property
    def texts(self) -> int:
        """The number of documents."""
        return len(self.windows or self.documents or self.identities or self.passes[0].nll)

    @property
    def windows_per_text(self) -> list[int]:
        """The number of windows of each document."""
        return self.windows or [1] * self.texts

    def of_texts(self, items: Sequence[T]) -> list[Sequence[T]]:
        """Groups a sequence with one item per window by document."""
        edges = accumulate(self.windows or [1] * len(items), initial=0)
        return [items[start:stop] for start, stop in pairwise(edges)]

    def texts_with(self, counts: Sequence[float]) -> int:
        """Returns the number of documents with a nonzero count in any window."""
        return sum(map(bool, intervals.grouped(counts, self.windows)))

    def estimate(self, sums: Sequence[float], counts: Sequence[float], level: float = LEVEL) -> Estimate:
        """Returns a mean and its interval from sums and counts per window; see :mod:`..statistics.intervals`."""
        return intervals.estimate(sums, counts, self.windows, level)

    def average(self, sums: Sequence[float], counts: Sequence[float], level: float = LEVEL) -> Average:
        """Returns the difference in the average document, from sums and counts per window."""
        return intervals.average(intervals.grouped(sums, self.windows), intervals.grouped(counts, self.windows), level)

    @cached_property
    def read_from(self) -> dict[Key, Pass]:
        """The pass that contains the losses of each schedule and length: schedules in order, lengths ascending."""
        return {(run.schedule, length): run for run in self.passes for length in run.lengths}

    def at_most(self, length: int) -> int | None:
        """Returns the largest number of tokens of a window at a length; None for sliding windows, which score all."""
        return None if self.sliding else prefix(length, self.bos).count

    def losses(self, schedule: str, length: int) -> PerWindow:
        """Returns, per window, the losses of the tokens at a length, fp32; NaN for tokens that do not count.

        Args:
            schedule: the label of a schedule, or of truncation if :meth:`truncated` knows its losses.

        Raises:
            DataError: the schedule was not measured at this length.
        """
        if schedule == TRUNCATION:
            return self.truncated(length) or []
        self.refuse_unmeasured(schedule, length)
        return [nll[: self.at_most(length)] for nll in self.wanted(self.read_from[schedule, length].nll)]

    def refuse_unmeasured(self, schedule: str, length: int | None = None) -> None:
        """Raises an error that names the measured schedules, or lengths, if this one is not among them."""
        if schedule not in self.schedules:
            known = suggest(schedule, self.schedules, f"choose from {', '.join(self.schedules)}")
            raise DataError(f"no schedule {schedule!r} was measured; {known}")
        if length is not None and (schedule, length) not in self.read_from:
            raise DataError(f"{schedule} was not measured at {length:,} tokens; choose from {self.lengths}")

    def wanted(self, values: PerWindow) -> PerWindow:
        """Returns, per window, the given values of scored tokens, with NaN for tokens that do not count."""
        if all(each.scored is None for each in self.identified):
            return list(values)
        first = 0 if self.bos else 1
        found = []
        for each, windows in zip(self.identified, self.of_texts(values), strict=True):
            if each.scored is None:
                found += windows
                continue
            for number, window in enumerate(windows):
                found.append(kept(window, each.scored, number * (each.size or 0) + first))
        return found

    def first(self, schedule: str, length: int) -> np.ndarray:
        """Returns the losses of the first document's tokens, from all of its windows, fp64."""
        return np.concatenate(self.of_texts(self.losses(schedule, length))[0]).astype(np.float64)

    def totals(self, schedule: str, length: int) -> Totals:
        """Returns the sums of the losses at a length. They are computed once, because they serve many comparisons."""
        key = schedule, length
        if key not in self._totals:
            self._totals[key] = sums_of(self.losses(schedule, length))
        return self._totals[key]

    def truncated(self, length: int) -> PerWindow | None:
        """Returns, per window, the losses of truncation up to a length; None if they are unknown.

        Within the trained length, these are the losses of the unchanged model, if it was measured with its training
        tables there.
        """
        last = self.truncation
        if last is None:
            return None
        short = min(length, last.length)
        for (schedule, longer), run in self.read_from.items():
            if schedule == AS_IS and longer >= short and run.table_sha256 == last.table_sha256:
                pairs = zip(run.nll, last.losses(length), strict=True)  # index 0 is position 1
                return self.wanted([np.concatenate([within[: short - 1], beyond]) for within, beyond in pairs])
        return None

    @property
    def truncated_losses(self) -> dict[int, float]:
        """Truncation's mean loss at each length, in nats per token; empty if truncation was not measured."""
        return {length: self.totals(TRUNCATION, length).mean for length in self.lengths if self.truncated(length)}

    @cached_property
    def identified(self) -> list[Identity]:
        """The hashes of the scored documents, in order."""
        return self.identities or [Identity.of(each) for each in self.of_texts(self.documents)]

    def same_text(self, other: Stored) -> bool:
        """Returns whether both measurements cut the same texts into windows in the same way."""
        return self._cut == other._cut

    @property
    def _cut(self) -> list[object]:
        """The facts that determine the windows and the scored tokens."""
        texts = [(each.sha256, each.scored) for each in self.identified]
        settings = map(self.protocol.get, ("stride", "name", "score"))
        return [texts, self.windows_per_text, self.bos, *settings]

    def same_tokens(self, other: Stored) -> bool:
        """Returns whether both measurements scored the same tokens, so that their losses can be paired."""
        return self is other or (self.same_text(other) and self.ids == other.ids)

    @property
    def ids(self) -> list[str]:
        """The hash of each document's token ids."""
        return [each.ids_sha256 for each in self.identified]


def sums_of(values: Iterable[np.ndarray]) -> Totals:
    """Returns, per window, the fp64 sum and the number of the values that are not NaN."""
    values = list(values)
    if len(values) > 1 and len(set(map(len, values))) == 1:  # at once, for many short windows
        rows = np.concatenate(values).reshape(len(values), -1)
        if not np.isnan(rows).any():
            return Totals(rows.sum(axis=1, dtype=np.float64).tolist(), [rows.shape[1]] * len(rows))
    known = [value[~np.isnan(value)] for value in values]
    return Totals([float(each.sum(dtype=np.float64)) for each in known], list(map(len, known)))


def ranges_of(marks: np.ndarray) -> np.ndarray:
    """Returns the half-open ranges in which a mask is true, int64 [ranges, 2]."""
    padded = np.concatenate([[0], marks.astype(np.int8), [0]])
    return np.flatnonzero(np.diff(padded)).reshape(-1, 2)


def kept(values: np.ndarray, ranges: Iterable[Sequence[int]], first: int) -> np.ndarray:
    """Returns the values with NaN for tokens outside the ranges; the first value belongs to the token ``first``."""
    found = np.full_like(values, np.nan)
    for start, stop in ranges:
        here = slice(max(start - first, 0), max(stop - first, 0))
        found[here] = values[here]
    return found


S = TypeVar("S", bound=Stored)


def parts_of(stored: S) -> dict[str, S]:
    """Returns the measurement of each source's documents, by source name; empty if there is a single source."""
    by_source: dict[str, list[int]] = {}
    for each, windows in zip(stored.identified, _numbers_by_text(stored), strict=True):
        by_source.setdefault(each.source, []).extend(windows)
    if len(by_source) < 2:
        return {}
    return {name: _of_source(stored, name, windows) for name, windows in by_source.items()}


def _numbers_by_text(stored: Stored) -> list[Sequence[int]]:
    """Returns the numbers of each document's windows."""
    return stored.of_texts(range(sum(stored.windows_per_text)))


def _of_source(stored: S, name: str, windows: Sequence[int]) -> S:
    """Returns the part of a measurement that belongs to a source, which has these windows.

    The part lacks the lengths at which none of its tokens counts.
    """
    part = part_of(stored, windows)
    passes = []
    for run in part.passes:
        lengths = [length for length in run.lengths if any(part.totals(run.schedule, length).counts)]
        passes += [replace(run, lengths=lengths)] if lengths else []
    longest = max(part.passes, key=lambda run: run.lengths[-1])
    data: DataFacts = {
        "source": name,
        "sha256": stored.data["sha256"],
        "documents": part.texts,
        "windows": len(longest.nll),
        "tokens": sum(sums_of(part.wanted(longest.nll)).counts),
    }
    return replace(part, passes=passes, data=data, whole=stored.groups)


def part_of(stored: S, windows: Sequence[int]) -> S:
    """Returns the part of a measurement with only some of its windows, whose numbers are ascending."""
    chosen = set(windows)
    texts = [number for number, text in enumerate(_numbers_by_text(stored)) if not chosen.isdisjoint(text)]
    return replace(
        stored,
        passes=[replace(run, nll=_picked(run.nll, windows)) for run in stored.passes],
        documents=_picked(stored.documents, windows),
        identities=_picked(stored.identities, texts),
        windows=windows_by_document(stored.windows, windows),
        divergences=[
            replace(divergence, kl=_picked(divergence.kl, windows), same=_picked(divergence.same, windows))
            for divergence in stored.divergences
        ],
        truncation=stored.truncation and replace(stored.truncation, nll=_picked(stored.truncation.nll, windows)),
    )


def _picked(values: Sequence[T], numbers: Sequence[int]) -> list[T]:
    return [values[number] for number in numbers] if values else []
