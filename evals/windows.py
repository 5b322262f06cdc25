"""Which tokens are fed and which are scored. Pure Python, no torch.

A *length* counts every position the model sees, BOS included. A *token* is one of the document's own, counted
from 0 without BOS. So a length of 2048 with BOS feeds 2047 tokens and scores all of them; without BOS it feeds
2048 and cannot score token 0, for which nothing comes before.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from ..errors import DataError


@dataclass(frozen=True)
class Window:
    """Tokens ``[start, stop)`` of a document are fed (after BOS, if any); ``[scored, stop)`` are scored."""

    start: int
    stop: int
    scored: int

    @property
    def count(self) -> int:
        """How many tokens are scored."""
        return self.stop - self.scored


def prefix(length: int, bos: bool) -> Window:
    """The first ``length`` positions of a document; every token that has something before it is scored.

    Raises:
        DataError: a length that leaves nothing to score.
    """
    if length < 2:
        raise DataError(f"length {length} leaves no token to score; use 2 or more")
    return Window(start=0, stop=length - bos, scored=0 if bos else 1)


def check_lengths(lengths: Iterable[int]) -> tuple[int, ...]:
    """The lengths, ascending, each once.

    Raises:
        DataError: none given, or one that is not a whole number of at least 2 positions.
    """
    given = list(lengths)
    for length in given:
        if isinstance(length, bool) or not isinstance(length, int):
            raise DataError(f"length {length!r} is not a whole number of tokens; write it like 4096")
        prefix(length, bos=True)
    if not given:
        raise DataError("no lengths to measure at; give at least one, like 2048")
    return tuple(sorted(set(given)))


def position_bins(window: Window, bos: bool) -> list[tuple[int, int]]:
    """Ranges of position that grow by about sqrt(2), as half-open indices into the window's scored tokens.

    Position means how many positions, BOS included, come before the scored token, so the first bin starts at 1.
    """
    first = window.scored + bos
    last = first + window.count
    edges = sorted({round(2 ** (k / 2)) for k in range(2 * last.bit_length())} | {first, last})
    inside = [edge for edge in edges if first <= edge <= last]
    return [(low - first, high - first) for low, high in pairwise(inside)]
