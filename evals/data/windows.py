"""Windows of a document: the tokens to feed and to score, and how texts are cut into windows, up to a budget.

A *length* counts every position that the model sees, including BOS. A *token* belongs to the document, and is counted
from 0 without BOS. A window of length 2048 with BOS feeds 2047 tokens and scores all of them. Without BOS it feeds 2048
tokens and cannot score token 0, which has no context. In both cases a full window has ``length - 1`` scorable tokens,
and exactly one position precedes the first scored token of a document.

The windows of a text do not overlap, and have the size of the largest length. A text within its share of the budget is
tokenized completely and cut from its start. In a longer text, windows start at evenly spaced bytes, each moved to the
start of the next line. They are tokenized separately, so that little more text is tokenized than measured.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import TypeAlias, cast

from ...errors import DataError
from ...lengths import parse_lengths
from ...output.formatting import brief
from .documents import Document, Encoded, Text, TextEncoder


@dataclass(frozen=True, slots=True)
class Window:
    """A window that feeds tokens ``[start, stop)`` of a document (after BOS, if any) and scores ``[scored, stop)``."""

    start: int
    stop: int
    scored: int

    @property
    def count(self) -> int:
        """The number of scored tokens."""
        return self.stop - self.scored


def prefix(length: int, bos: bool) -> Window:
    """Returns a window of the first ``length`` positions of a document, which scores every token that has context.

    Raises:
        DataError: no token can be scored at this length.
    """
    if length < 2:
        raise DataError(f"length {length} leaves no token to score; use 2 or more")
    return Window(start=0, stop=length - bos, scored=0 if bos else 1)


def sliding(tokens: int, length: int, stride: int, bos: bool) -> Iterator[Window]:
    """Yields windows of ``length`` positions over a document of ``tokens``, ``stride`` tokens apart.

    Window k feeds ``[kS, min(kS + W, n))``, ``W = length - bos``, and scores the tokens after the previous window, so
    every token is scored once (token 0 only with BOS). Tokens from W on have at least ``W - S`` tokens of context. A
    document of at most W tokens is one window, and a document without scorable tokens has no window.

    Args:
        tokens: n, the number of the document's tokens.
        stride: S, at most ``length - 1``; see :func:`check_stride`.
    """
    first = prefix(length, bos)
    if tokens <= first.scored:
        return
    start = 0
    scored = first.scored
    while scored < tokens:
        stop = min(start + first.stop, tokens)
        yield Window(start, stop, scored)
        start += stride
        scored = stop


def truncated(tokens: int, length: int, stride: int, bos: bool) -> Iterator[Window]:
    """Yields windows that score the tokens at positions from ``length`` on with truncated context.

    Each window feeds ``length`` positions, the first of which is BOS if the full measurement has BOS, and scores its
    last ``stride`` tokens. The first scored token is at position
    ``length``; a token's position is the number of positions before the token, including BOS. Only the last window of a
    document may be shorter, so the loss of a token does not depend on where the document ends.

    Args:
        tokens: n, the number of the document's tokens.
        stride: S, at most ``length - 1``.
        bos: whether BOS precedes every window, as in the full measurement.
    """
    fed = length - bos
    for scored in range(fed, tokens, stride):
        start = scored + stride - fed
        yield Window(start, min(start + fed, tokens), scored)


Lengths: TypeAlias = int | str | Iterable[int | str]
"""Lengths as a user gives them: one or several, as numbers or like ``"2k,4k"``."""


def check_lengths(lengths: Lengths) -> tuple[int, ...]:
    """Returns the distinct lengths in ascending order, given one length, several, or a text like ``"2k,4k"``.

    Raises:
        DataError: no length is given, or one is not an integer of at least 2.
    """
    given = []
    for each in [lengths] if isinstance(lengths, (int, str)) else lengths:
        given += parse_lengths(each if isinstance(each, str) else [each])
    for length in given:
        prefix(length, bos=True)
    if not given:
        raise DataError("no lengths to measure at; give at least one, like 2048")
    return tuple(sorted(set(given)))


def check_windows(windows: int | str | None) -> int | str | None:
    """Returns the validated number of windows per document: a number, "all", or None.

    Raises:
        DataError: the value is something else, or a number below 1.
    """
    count = int(windows) if isinstance(windows, str) and windows.isdecimal() and len(windows) < 20 else windows
    number = count if isinstance(count, int) and not isinstance(count, bool) else 0
    if count not in (None, "all") and number < 1:
        raise DataError(f"windows {brief(count)} is neither 'all' nor a number of 1 or more", "windows")
    return count


def check_stride(stride: int | None, lengths: Iterable[int]) -> None:
    """Checks that sliding windows score every token exactly once; None means no sliding windows.

    Raises:
        DataError: the stride is less than 1, or more than the ``length - 1`` tokens that the shortest window can score.
    """
    if stride is None:
        return
    if not isinstance(stride, int) or isinstance(stride, bool) or stride < 1:
        raise DataError(f"stride {stride!r} is not a whole number of tokens; use 1 or more")
    shortest = min(lengths)
    if stride >= shortest:
        raise DataError(
            f"stride {stride} skips tokens: a window of length {shortest} scores at most {shortest - 1}; "
            f"use a stride up to {shortest - 1}, or longer lengths"
        )


def position_bins(stop: int) -> list[tuple[int, int]]:
    """Returns half-open ranges of positions that grow by about sqrt(2) and cover ``[1, stop)``.

    The position of a scored token is the number of positions before it, including BOS; see the module's docstring.
    """
    powers = [round(2 ** (k / 2)) for k in range(2 * stop.bit_length())]
    return list(pairwise(edge for edge in sorted({stop, *powers}) if edge <= stop))


def windows_by_document(windows: Sequence[int], chosen: Iterable[int]) -> list[int]:
    """Returns the number of chosen windows per document, without documents that have no chosen window.

    Args:
        windows: the number of windows per document.
        chosen: the numbers of the windows.
    """
    wanted = set(chosen)
    documents = pairwise(accumulate(windows, initial=0))
    counts = [len(wanted.intersection(range(first, stop))) for first, stop in documents]
    return [count for count in counts if count]


# --- Cutting texts ---

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
        self.limits = limits
        self._encoder = cast(TextEncoder, encoder)
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
        size = self.limits.size
        needed = self.limits.needed
        if isinstance(text, Text) and self.limits.windows == 1 and len(text.text) <= _SHORT:
            text = _document(text, self._encoder.whole(text.text), 0)
        if isinstance(text, Document):
            tokens = len(text.ids)
            cut = _uncut(text, size) if self.limits.windows == 1 else _of_document(text, size, 1)
        else:
            found = self._encoder.first(text.encoded, needed)
            tokens = len(found)
            cut = _of_text(text, [_document(text, found.part(0, size), 0)])
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
        size = self.limits.size
        placed = first.measured is not None
        if isinstance(text, Document):
            return _of_document(text, size, most)
        clearly = most and first.measured is not None and text.size > _CLEARLY * most * first.measured
        found = None if clearly else _whole(text, self._encoder, size, most, placed)
        return found or _of_text(text, _spread(text, self._encoder, size, most or 1))


def _of_document(document: Document, size: int, most: int | None) -> Cut:
    """Cuts a document into windows, from its start if all windows are requested, else evenly spaced."""
    tokens = len(document.ids)
    ends = document.byte_ends
    holds = tokens // size
    count = holds if most is None else min(holds, most)
    step = size if count == holds else tokens / count
    starts = [int(number * step) for number in range(count)]
    windows = [document.part(start, start + size) for start in starts]
    if ends is None:
        return Cut(windows, count * size, tokens, in_bytes=False)
    return Cut(windows, sum(each.size for each in windows), document.size)


def _uncut(document: Document, size: int) -> Cut:
    """Returns a whole document, which is kept for its hash although only its first window is fed."""
    ends = document.byte_ends
    if ends is None:
        return Cut([document], size, len(document.ids), in_bytes=False)
    return Cut([document], int(ends[:size].max(initial=0)), document.size)


# --- Texts ---


def _spread(text: Text, encoder: TextEncoder, size: int, most: int) -> list[Document]:
    """Returns windows without overlap that start at evenly spaced bytes."""
    windows = []
    reached = 0
    for number in range(most):
        start = text.start_at(max(text.size * number // most, reached))
        tokens = encoder.first(text.encoded, size, start)
        if len(tokens) == size:
            windows.append(_document(text, tokens, start))
            reached = start + windows[-1].size
    return windows


def _of_text(text: Text, windows: Sequence[Document]) -> Cut:
    known = all(each.byte_ends is not None for each in windows)
    return Cut(windows, sum(each.size for each in windows) if known else None, text.size)


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
    return Document(text.name, tokens.listed(), tokens.byte_ends, text.sha256, offset=start)
