"""Cuts texts into windows to measure, up to a budget.

The windows of a text do not overlap, and have the size of the largest length. A text within its share of the budget is
tokenized completely and cut from its start. In a longer text, windows start at evenly spaced bytes, each moved to the
start of the next line. They are tokenized separately, so that little more text is tokenized than measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import cast

from .documents import Document, Encoded, TextEncoder
from .texts import Text

Source = Text | Document
"""A document before it is cut."""

BUDGET = 2**18
"""The default number of tokens to feed per schedule."""

_SHORT = 2**16
"""The number of characters up to which a text is tokenized completely for one window."""

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
    """

    size: int
    needed: int
    windows: int | None = None
    total: int | None = None


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
        self._known: set[str] = set()

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
            if first is None:
                continue
            sha256 = first.windows[0].sha256
            if sha256 in self._known:  # skipped, because it is not independent of the other one
                self.skipped["duplicates"] += 1
                continue
            self._known.add(sha256)
            cuts.append(first if total is not None else self._cut(text, self.limits.windows, first))
            kept.append(text)
            if total is None or len(cuts) >= total:
                kept.clear()
            if len(cuts) == most:
                break
        return self._shared_out(cuts, kept) if len(kept) == len(cuts) else cuts

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
        if isinstance(text, Text) and self.limits.windows == 1 and len(text.text) <= _SHORT:
            text = _document(text, self._encoder.whole(text.text), 0)
        if isinstance(text, Document):
            tokens, cut = len(text.ids), _of_document(text, size, 1)
            if self.limits.windows == 1:  # keep the whole document for its hash; only the first window is fed
                cut = replace(cut, windows=[text])
        else:
            found = self._encoder.first(text.encoded, needed)
            tokens, cut = len(found), _of_text(text, [_document(text, found.part(0, size), 0)])
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
        return found or _of_text(text, _spread(text, self._encoder, size, most or 1))


def _of_document(document: Document, size: int, most: int | None) -> Cut:
    """Cuts a document into windows, from its start if all windows are requested, else evenly spaced."""
    tokens, ends = len(document.ids), document.byte_ends
    holds = tokens // size
    count = holds if most is None else min(holds, most)
    step = size if count == holds else tokens / count
    starts = [int(number * step) for number in range(count)]
    windows = [document.part(start, start + size) for start in starts]
    if ends is None:
        return Cut(windows, count * size, tokens, in_bytes=False)
    return Cut(windows, sum(int(each.sizes.sum()) for each in windows), int(ends[-1]) if tokens else 0)


# --- Texts ---


def _spread(text: Text, encoder: TextEncoder, size: int, most: int) -> list[Document]:
    """Returns windows without overlap that start at evenly spaced bytes."""
    windows: list[Document] = []
    reached = 0
    for number in range(most):
        start = text.start_at(max(text.size * number // most, reached))
        tokens = encoder.first(text.encoded, size, start)
        if len(tokens) == size:
            windows.append(_document(text, tokens, start))
            reached = start + int(windows[-1].sizes.sum())
    return windows


def _of_text(text: Text, windows: Sequence[Document]) -> Cut:
    known = all(each.byte_ends is not None for each in windows)
    return Cut(windows, sum(int(each.sizes.sum()) for each in windows) if known else None, text.size)


def _whole(text: Text, encoder: TextEncoder, size: int, most: int | None, placed: bool) -> Cut | None:
    """Tokenizes a full text and cuts it into at most ``most`` windows.

    For a text with more windows, returns None if ``placed``, so that the caller takes only the evenly spaced windows,
    else evenly spaced windows.

    Args:
        placed: whether the tokens' positions are known.
    """
    tokens = encoder.whole(text.text)
    if placed and most and len(tokens) >= (most + 1) * size:
        return None
    cut = _of_document(_document(text, tokens, 0), size, most)
    return replace(cut, whole=text.size) if placed else cut


def _document(text: Text, tokens: Encoded, start: int) -> Document:
    return Document(text.name, tokens.ids.tolist(), tokens.byte_ends, text.sha256, offset=start)
