"""Perplexity of the key tokens, which a fixed key model predicts well with long context and badly with short context.

They are defined by Fang et al. 2024, "What is Wrong with Perplexity for Long-context Language Modeling?"
(arXiv:2410.23771, section 3), and computed as in the authors' code. Key tokens are stored as byte ranges of the text,
so that models with different tokenizers are measured on the same text.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Required, cast

import numpy as np
from annotated_types import Len
from pydantic import FailFast
from typing_extensions import TypedDict

from ...errors import CheckpointError, DataError
from ...files import Data, local_path, sha256, write_checked
from ...output.formatting import Page, escaped, grid, markdown
from ...output.plotting import data_frame, in_style, plain
from .. import checking
from ..checking import Count, Damaged, Parsed, fitting
from ..data.documents import Document
from .base import Metric, Option, held, masked, perplexities, ppl_table
from .stored import Stored, sums_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame


SCHEMA = 1
KIND = "key spans"
MOST = 2**28
"""The largest file of key spans, in bytes."""


WINDOW, STRIDE, ALPHA, BETA = 4096, 1024, 2.0, -2.0
"""The values in the paper."""

MAX_LENGTH = 32768
"""The default of LongPPL's script. One pass covers a text, and its time grows with the square of the length."""


def check_window(window: int, stride: int, max_length: int) -> None:
    """Checks that a text of ``max_length`` tokens has tokens after the window.

    Raises:
        DataError: it has none, or the window or the stride is empty.
    """
    if not (1 <= window < max_length and stride >= 1):
        raise DataError(
            f"a window of {window:,} tokens and a stride of {stride:,} leave no key tokens in the first {max_length:,} "
            "of a text; give 1 or more, and a larger max_length than window",
            "window",
            "stride",
            "max_length",
        )


@dataclass(frozen=True)
class KeySpans:
    """The key tokens' byte ranges in texts.

    Attributes:
        spans: by the text's sha256, half-open ranges of UTF-8 bytes, ascending and without overlap.
        made: the key model and the parameters that the spans were found with.
    """

    spans: dict[str, list[tuple[int, int]]]
    made: dict[str, Any] = field(default_factory=dict)

    @property
    def sha256(self) -> str:
        """A hash of the spans, to compare two files."""
        return sha256(json.dumps(self.spans, sort_keys=True).encode())

    @property
    def facts(self) -> Data:
        """The key model, the parameters and the hash of the spans, for results.json."""
        return {**self.made, "spans_sha256": self.made.get("spans_sha256", self.sha256)}

    def marks(self, document: Document) -> np.ndarray:
        """Returns a mask of the tokens that are entirely inside a span, bool [tokens].

        A token without bytes counts as covering the last byte before its position.

        Raises:
            DataError: the spans belong to other texts, or the token positions in the text are unknown.
        """
        if document.sha256 not in self.spans:
            raise DataError(f"the key spans do not cover {document.name}; run `ropescale keys` on the same data")
        ranges = np.array(self.spans[document.sha256], np.int64).reshape(-1, 2)
        starts, ends = places(document)
        starts -= ends == starts
        which = np.searchsorted(ranges[:, 0], starts, side="right") - 1  # the last span that starts before the token
        inside = which >= 0
        if len(ranges):
            inside &= ends <= ranges[which, 1]
        return inside

    @property
    def model(self) -> str:
        """The key model's name."""
        return Path(str(self.made.get("key_model", {}).get("path", "?"))).name

    def to_pandas(self) -> DataFrame:
        """Returns a row per span as a pandas ``DataFrame``: the key model, the text's sha256, and the byte range.

        Raises:
            RopescaleError: pandas is not installed.
        """
        rows = [(self.model, text, *span) for text, spans in self.spans.items() for span in spans]
        return data_frame(["model", "data", "start", "end"], rows)

    def summary(self) -> str:
        """Returns a sentence with the numbers of spans, bytes and texts."""
        spans = [span for each in self.spans.values() for span in each]
        size = sum(end - start for start, end in spans)
        return f"{self.model}: {len(spans):,} spans of key tokens, {size:,} bytes, in {len(self.spans):,} texts."

    def to_markdown(self) -> str:
        """Returns the summary, and a table of spans and their bytes by text."""
        lines = [
            [text[:12], f"{len(spans):,}", f"{sum(end - start for start, end in spans):,}"]
            for text, spans in self.spans.items()
        ]
        return markdown([self.summary(), grid(["text sha256", "spans", "bytes"], lines, right=(1, 2))])

    def plot(self, ax: Axes | None = None) -> Figure:
        """Returns a matplotlib figure of the spans up to each byte of a text, all texts together.

        Args:
            ax: axes to draw into, which several key models can share.

        Raises:
            RopescaleError: matplotlib is not installed.
        """
        if ax is None:
            with in_style(7, 4.4) as figure:
                return self.plot(figure.subplots())
        starts = sorted(start for spans in self.spans.values() for start, _ in spans)
        ax.step(starts, range(1, len(starts) + 1), where="post", label=plain(self.model))
        ax.set(xlabel="position in the text (bytes)", ylabel="spans of key tokens")
        ax.legend()
        return cast("Figure", ax.get_figure(root=True))

    def save(self, out: str | Path, force: bool = False) -> None:
        """Writes the spans as JSON.

        Raises:
            CheckpointError: the file cannot be written, or :meth:`check_replaces` raised.
        """
        content = {"schema": SCHEMA, "kind": KIND, **self.made, "spans": self.spans}
        write_checked((json.dumps(content) + "\n").encode(), out, partial(self.check_replaces, force=force))

    def check_replaces(self, path: Path, force: bool = False) -> None:
        """Checks that these spans may replace a file.

        Args:
            force: whether spans of another text, model or window may go.

        Raises:
            CheckpointError: the file has other content than key spans, or without ``force`` spans that these lack.
        """
        there = check_replaceable(path)
        if there is None or force:
            return
        if there.spans.keys() - self.spans.keys() or there._identity != self._identity:
            why = f"{path} holds key spans of another text, model or window"
            raise CheckpointError(f"{why}; choose another file, or allow to replace them", "out", "force")

    @property
    def _identity(self) -> list[object]:
        """Returns what must be equal for spans to replace others: the parameters, and the model without its path."""
        names = ("window", "stride", "alpha", "beta", "max_length")
        return [{**self.made.get("key_model", {}), "path": ""}, *map(self.made.get, names)]


def check_replaceable(path: Path) -> KeySpans | None:
    """Returns the key spans in a file that may be replaced by others; None if it is missing or empty.

    Raises:
        CheckpointError: the file has different content.
    """
    try:
        return load(path) if os.path.lexists(path) and checking.content(path, MOST) else None
    except (Damaged, DataError):
        raise CheckpointError(f"cannot write {path}: the file there holds no key spans; choose another file") from None


class _Made(TypedDict, total=False):
    """The key model, the parameters and the counts in a file of key spans."""

    key_model: dict[str, str]
    window: Required[Count]
    stride: Count
    alpha: float
    beta: float
    max_length: Count
    key_tokens: Count
    tokens: Count
    cut_texts: Count


class SpansFile(_Made):
    """The content of a file of key spans."""

    schema: Literal[1]
    kind: Literal["key spans"]
    spans: dict[str, Annotated[list[Annotated[list[Count], Len(2, 2)]], FailFast()]]


def load(path: str | Path) -> KeySpans:
    """Reads a file that :meth:`KeySpans.save` wrote.

    Raises:
        DataError: the file does not exist, or contains no key spans.
    """
    try:
        found = cast(SpansFile, fitting(checking.parsed(local_path(path), MOST), SpansFile))
        for spans in found["spans"].values():
            ends = list(itertools.chain(*spans))
            if ends != sorted(ends):
                raise Damaged("holds spans that overlap or end before their start")
    except Damaged as error:
        raise DataError(f"{path} {error}; make it with `ropescale keys`") from None
    spans = {sha: [(start, end) for start, end in pairs] for sha, pairs in found["spans"].items()}
    return KeySpans(spans, {name: value for name, value in found.items() if name in _Made.__annotations__})


def places(document: Document) -> tuple[np.ndarray, np.ndarray]:
    """Returns the start and the end byte of each token in the text."""
    if document.byte_ends is None:
        raise DataError(
            f"key tokens need the positions of tokens in the text, which are unknown for {document.name}; "
            "give texts, and a tokenizer with offsets (a fast one)"
        )
    ends = np.asarray(document.byte_ends, np.int64) + document.offset
    return np.concatenate([[document.offset], ends])[:-1], ends


def joined(pieces: Iterable[Sequence[int]]) -> list[tuple[int, int]]:
    """Returns the sorted ranges, with ranges that touch or overlap joined and empty ones removed."""
    found = []
    for start, end in sorted(map(tuple, pieces)):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        elif end > start:
            found.append((start, end))
    return found


@dataclass(frozen=True)
class KeyTokensRow:
    """The perplexity of the key tokens under one schedule at one length.

    The perplexity is None if there are no key tokens, and its bounds are None with fewer than five documents.
    ``fraction`` is the share of key tokens among all scored tokens. ``documents`` and ``windows`` are the numbers of
    documents and windows that contain key tokens, and ``interval`` names the interval's sampling unit.
    """

    schedule: str
    length: int
    tokens: int
    fraction: float
    nll: float | None
    ppl: float | None
    ppl_low: float | None
    ppl_high: float | None
    documents: int
    windows: int
    interval: str | None


_SPANS = Option[KeySpans | None](
    "key_spans",
    Path,
    "Also measure the tokens that `ropescale keys` found.",
    read=lambda given: given if isinstance(given, KeySpans) else load(given),
)


class KeyTokens(Metric[Stored, KeyTokensRow]):
    """The perplexity of the tokens inside the key spans."""

    row = KeyTokensRow
    key = "key_tokens"
    has_facts = True
    options = (_SPANS,)

    def check(self, options: Mapping[str, Any], documents: Sequence[Document]) -> None:
        """Checks that the key spans cover the documents.

        Raises:
            DataError: the key spans do not cover a document.
        """
        spans: KeySpans | None = options[_SPANS.name]
        if spans is not None:
            for document in documents:
                spans.marks(document)

    def recalled(self, results: Parsed) -> Parsed:
        """Returns the facts about the key spans from results.json, which does not contain the spans themselves."""
        part = results.get(self.key)
        if not part:
            return {}
        facts = {name: value for name, value in part.items() if name != "rows"}
        return {_SPANS.name: KeySpans({}, facts)}

    def reduce(self, stored: Stored) -> list[KeyTokensRow]:
        """Returns a row for every schedule at every length."""
        spans = _SPANS.of(stored)
        if spans is None or not stored.documents:
            return []
        first = 0 if stored.bos else 1
        marks = [spans.marks(document)[first:] for document in stored.documents]
        rows = []
        for schedule, length in stored.read_from:
            losses = stored.losses(schedule, length)
            tokens, documents, windows, loss = masked(stored, losses, marks)
            share = tokens / sum(sums_of(losses).counts)
            figures = (tokens, share, loss and loss.mean, *perplexities(loss), documents, windows, loss and loss.over)
            rows.append(KeyTokensRow(schedule, length, *figures))
        return rows

    def facts(self, stored: Stored) -> Data:
        """Returns the facts about the key spans."""
        spans = _SPANS.of(stored)
        return spans.facts if spans else {}

    def to_markdown(self, stored: Stored) -> Page:
        """Returns the table of perplexities, with the key model and the context that the key tokens were found with."""
        rows = self.rows(stored)
        spans = _SPANS.of(stored)
        if spans is None or not rows:
            return []
        last = rows[-1]
        title = (
            f"Key tokens ({last.tokens:,}, {last.fraction:.2%} of all, at {last.length:,}"
            f"{held(stored, last.documents, last.windows)}), by {escaped(spans.model)} with the whole text "
            f"against {spans.made['window']:,} tokens:"
        )
        return [title, ppl_table(stored, rows)]


METRIC = KeyTokens()
