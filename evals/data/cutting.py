"""Cuts texts into windows to measure, up to a budget.

The windows of a text do not overlap, and have the size of the largest length. A text within its share of the budget is
tokenized completely and cut from its start. In a longer text, windows start at evenly spaced bytes, each moved to the
start of the next line. They are read and tokenized separately, so that little more text is read than measured.
"""

from __future__ import annotations

import filecmp
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np

from ...files import sha256
from .documents import Document
from .encoding import PIECE, Encoded, TextEncoder, joined
from .texts import Reading, Text, TextFile

Source = Text | TextFile | Document
"""A document before it is cut."""

BUDGET = 2**18
"""The default number of tokens to feed per schedule."""

_CLEARLY = 1.5
"""A text larger than this multiple of its share is not tokenized completely."""


@dataclass(frozen=True)
class Limits:
    """Limits on the measured part of each text.

    Attributes:
        size: the number of tokens of a window, without BOS.
        needed: the fewest tokens that a text needs; at least ``size``.
        windows: the most windows per text; None for no limit.
        total: the most windows of all texts together, but at least one per text; None for no limit.
        placed: whether each window needs the hash of the full text and its position in the text. To find them, files
            are read completely.
    """

    size: int
    needed: int
    windows: int | None = None
    total: int | None = None
    placed: bool = False


@dataclass(frozen=True)
class Cut:
    """The windows of one text, in order.

    Attributes:
        windows: the windows, with the hash of their text.
        measured, whole: the size of the windows and of the text, in bytes, or in tokens if the text was given as
            tokens; ``measured`` is None if the tokens' positions in the text are unknown.
        in_bytes: whether these sizes are in bytes.
    """

    windows: Sequence[Document]
    measured: int | None
    whole: int
    in_bytes: bool = True


class Cutter:
    """The cutter of a measurement's texts, which also counts the texts that it skips.

    Args:
        encoder: the text encoder; None if all documents are given as tokens.

    Attributes:
        longest: the name and the number of tokens of the longest text that is too short.
        skipped: the number of skipped texts, by reason.
    """

    def __init__(self, limits: Limits, encoder: TextEncoder | None) -> None:
        self.limits, self._encoder = limits, cast(TextEncoder, encoder)
        self.longest: tuple[str, int] | None = None
        self.skipped = {"too_short": 0, "empty": 0, "duplicates": 0}
        self._known: dict[tuple[int, str], list[Path | None]] = {}

    def cuts(self, texts: Iterable[Source], most: int | None = None) -> list[Cut]:
        """Returns the windows of the first ``most`` sufficiently long texts.

        If the texts share a budget, they stay in memory until their number is known, or until one window per text uses
        up the budget.
        """
        cuts: list[Cut] = []
        kept: list[Source] = []
        total = self.limits.total
        for text in texts:
            first = self._first(text)
            if first is None or self._is_known(text, first):
                continue
            cuts.append(first if total is not None else self._cut(text, self.limits.windows, first))
            kept.append(text)
            if total is None or len(cuts) >= total:
                kept.clear()
            if len(cuts) == most:
                break
        return self._shared_out(cuts, kept) if len(kept) == len(cuts) else cuts

    def _is_known(self, text: Source, first: Cut) -> bool:
        """Returns whether a text is a duplicate, and counts it if so; duplicates are skipped as not independent."""
        path = text.path if isinstance(text, TextFile) else None
        begins = first.windows[0].ids_sha256 if path else first.windows[0].sha256
        alike = self._known.setdefault((first.whole, begins), [])  # texts in memory are hashed completely
        known = any(not path or not other or filecmp.cmp(path, other, shallow=False) for other in alike)
        self.skipped["duplicates"] += known
        alike.append(path)
        return known

    def _shared_out(self, cuts: list[Cut], texts: Sequence[Source]) -> list[Cut]:
        """Cuts texts that share a budget equally; longer texts get what shorter ones do not use."""
        left = self.limits.total or 0
        for done, number in enumerate(sorted(range(len(cuts)), key=lambda number: cuts[number].whole)):
            share = max(1, left // (len(cuts) - done))
            most = share if self.limits.windows is None else min(share, self.limits.windows)
            cuts[number] = self._cut(texts[number], most, cuts[number])
            left -= len(cuts[number].windows)
        return cuts

    def _first(self, text: Source) -> Cut | None:
        """Returns the first window of a text, or counts the text as skipped and returns None if it is too short."""
        size, needed = self.limits.size, self.limits.needed
        if isinstance(text, Text) and self.limits.windows == 1 and len(text.text) <= PIECE:
            text = _document(text, self._encoder.whole([text.text]), 0, _identity(text, []))
        if isinstance(text, Document):
            tokens, cut = len(text.ids), _of_document(text, size, 1)
            if self.limits.windows == 1:  # keep the whole document for its hash; only the first window is fed
                cut = replace(cut, windows=[text])
        else:
            head = _alone(text, self._encoder, 0, size, needed)
            tokens, cut = head.found, _of_text(text, [head], self.limits.placed)
        if tokens >= needed:
            return cut
        self.skipped["too_short" if tokens else "empty"] += 1
        if self.longest is None or tokens > self.longest[1]:
            self.longest = text.name, tokens
        return None

    def _cut(self, text: Source, most: int | None, first: Cut) -> Cut:
        """Cuts a text into at most ``most`` windows, given the first one.

        Tokenizes the full text if it is not much longer than the windows, or if the tokens' positions are unknown.
        """
        if most == 1:
            return first
        size, placed = self.limits.size, first.measured is not None
        if isinstance(text, Document):
            return _of_document(text, size, most)
        clearly = most and first.measured is not None and text.size > _CLEARLY * most * first.measured
        found = None if clearly else _whole(text, self._encoder, size, most, placed)
        return found or _of_text(text, _spread(text, self._encoder, size, most or 1), self.limits.placed)


def _of_document(document: Document, size: int, most: int | None) -> Cut:
    """Cuts a document into windows, from its start if all windows are requested, else evenly spaced."""
    tokens, ends = len(document.ids), document.byte_ends
    holds = tokens // size
    count = holds if most is None else min(holds, most)
    starts = [number * (size if count == holds else tokens / count) for number in range(count)]
    windows = [document.part(int(start), int(start) + size) for start in starts]
    if ends is None:
        return Cut(windows, count * size, tokens, in_bytes=False)
    return Cut(windows, sum(int(each.sizes.sum()) for each in windows), int(ends[-1]) if tokens else 0)


# --- Texts ---


@dataclass(frozen=True)
class _Window:
    """The tokens of a window that was read separately.

    Attributes:
        read: the closed reading of the window's text.
        bytes: the number of bytes that the window's tokens cover in the text; None if the tokens' positions are
            unknown.
        found: the number of tokens found from the window's start on, up to the number needed.
    """

    tokens: Encoded
    read: Reading
    bytes: int | None
    found: int


def _alone(text: Text | TextFile, encoder: TextEncoder, offset: int, size: int, needed: int = 0) -> _Window:
    """Tokenizes a window from a byte offset on, and counts tokens up to ``needed``."""
    with text.reading(offset) as reading:
        found = encoder.first(reading, max(size, needed))
    tokens = found.part(0, size)
    ends = tokens.byte_ends
    taken = None if ends is None else reading.taken(int(ends[-1])) if len(ends) else 0
    return _Window(tokens, reading, taken, len(found))


def _spread(text: Text | TextFile, encoder: TextEncoder, size: int, most: int) -> list[_Window]:
    """Returns windows without overlap that start at evenly spaced bytes."""
    windows: list[_Window] = []
    reached = 0
    for number in range(most):
        window = _alone(text, encoder, max(text.size * number // most, reached), size)
        if len(window.tokens) == size:
            windows.append(window)
            reached = window.read.start + (window.bytes or 0)
    return windows


def _of_text(text: Text | TextFile, windows: Sequence[_Window], placed: bool) -> Cut:
    sha256 = _identity(text, [each.read for each in windows])
    sizes = [each.bytes for each in windows]
    made = [_document(text, each.tokens, each.read.start, sha256) for each in windows]
    if placed and isinstance(text, TextFile):
        through = text.read_through
        made = [replace(each, offset=through.before(each.offset), text_sha256=through.sha256) for each in made]
    return Cut(made, None if None in sizes else sum(filter(None, sizes)), text.size)


def _whole(text: Text | TextFile, encoder: TextEncoder, size: int, most: int | None, placed: bool) -> Cut | None:
    """Tokenizes a full text and cuts it into at most ``most`` windows.

    For a text with more windows, returns None if ``placed``, so that the caller reads only the evenly spaced windows,
    else evenly spaced windows.

    Args:
        placed: whether the tokens' positions are known.
    """
    parts: list[Encoded] = []
    count = 0
    with text.reading() as reading:
        for tokens in encoder.stream(reading):
            parts.append(tokens)
            count += len(tokens)
            if placed and most and count >= (most + 1) * size:
                return None
    tokens = joined(parts)
    ids = cast(Sequence[int], tokens.ids)  # a list of all ids would take five times as much memory
    cut = _of_document(Document(text.name, ids, tokens.byte_ends, _identity(text, [reading])), size, most)
    cut = replace(cut, windows=[replace(each, ids=np.asarray(each.ids).tolist()) for each in cut.windows])
    return replace(cut, measured=reading.taken(cut.measured or 0), whole=text.size) if placed else cut


def _document(text: Text | TextFile, tokens: Encoded, start: int, sha256: str) -> Document:
    return Document(text.name, tokens.ids.tolist(), tokens.byte_ends, sha256, offset=start)


def _identity(text: Text | TextFile, readings: Sequence[Reading]) -> str:
    """Returns the hash of the part of a text that was read.

    The hash also covers the file's size and modification time if the file was not read completely.
    """
    if isinstance(text, Text):
        return sha256(text.encoded)
    read = [each.sha256 for each in readings]
    if len(read) == 1 and readings[0].whole:
        return read[0]
    return sha256("\n".join([*read, text.stamp]).encode())
