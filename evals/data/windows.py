"""Windows of a document: the tokens to feed and to score. Pure Python, without torch.

A *length* counts every position that the model sees, including BOS. A *token* belongs to the document, and is counted
from 0 without BOS. A window of length 2048 with BOS feeds 2047 tokens and scores all of them. Without BOS it feeds 2048
tokens and cannot score token 0, which has no context. In both cases a full window has ``length - 1`` scorable tokens,
and exactly one position precedes the first scored token of a document.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from ...errors import DataError
from ...lengths import parse_lengths
from ...output.formatting import brief


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
    start, scored = 0, first.scored
    while scored < tokens:
        stop = min(start + first.stop, tokens)
        yield Window(start, stop, scored)
        start, scored = start + stride, stop


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


def check_lengths(lengths: int | str | Iterable[int | str]) -> tuple[int, ...]:
    """Returns the distinct lengths in ascending order, given one length, several, or a text like ``"2k,4k"``.

    Raises:
        DataError: no length is given, or one is not an integer of at least 2.
    """
    listed = [lengths] if isinstance(lengths, (int, str)) else list(lengths)
    given = [length for each in listed for length in parse_lengths(each if isinstance(each, str) else [each])]
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
    if isinstance(stride, bool) or not isinstance(stride, int) or stride < 1:
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
    edges = sorted({round(2 ** (k / 2)) for k in range(2 * stop.bit_length())} | {1, stop})
    return list(pairwise(edge for edge in edges if 1 <= edge <= stop))


def windows_by_document(windows: Sequence[int], chosen: Iterable[int]) -> list[int]:
    """Returns the number of chosen windows per document, without documents that have no chosen window.

    Args:
        windows: the number of windows per document.
        chosen: the numbers of the windows.
    """
    wanted, edges = set(chosen), pairwise(accumulate(windows, initial=0))
    return [count for count in (len(wanted & set(range(*edge))) for edge in edges) if count]
