"""Splits the windows of a text into those that a search learns from and those held out.

Windows are those of ``ropescale eval``: BOS, then as many tokens as the target length leaves; the first begins where
its document does, the others are evenly spaced in it. Whole documents are held out, so that nothing that was learned
from stands in the held-out windows; of a single document, its last windows are.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, zip_longest

from ....errors import DataError

CHECKED = 0.2
"""The share of the budget that goes to held-out windows, at most, where they are checked often."""

_HELD_DOCUMENTS = 4
"""One document in so many is held out."""


@dataclass(frozen=True)
class Split:
    """The windows by number, as the corpus has them.

    Attributes:
        learned: those to learn from, in the order of the seed.
        held_out: those held out, sorted.
        documents: how many documents are held out; 0 where windows of the only one are.
    """

    learned: tuple[int, ...]
    held_out: tuple[int, ...]
    documents: int


def split(windows: Sequence[int], held_out: int, seed: int) -> Split:
    """Splits windows by document.

    Args:
        windows: of each document, how many it has.
        held_out: how many windows to hold out, at most.

    Raises:
        DataError: there is only one window.
    """
    if sum(windows) < 2:
        raise DataError(
            "the text has one window of the target length, and a search needs two: one to learn from, and one held "
            "out; give more text, or a shorter target_length",
            "documents",
            "target_length",
        )
    rng = random.Random(f"ropescale search {seed}")
    starts = [0, *accumulate(windows)]
    if len(windows) == 1:
        kept, learned, documents = _tail(windows[0], held_out), list(range(windows[0])), 0
        learned = learned[: -len(kept)]
    else:
        order = rng.sample(range(len(windows)), len(windows))
        documents = min(held_out, max(1, len(windows) // _HELD_DOCUMENTS))
        apart = [list(range(starts[n], starts[n + 1])) for n in order]
        kept = _in_turn(apart[:documents])[:held_out]
        learned = [window for each in apart[documents:] for window in each]
    rng.shuffle(learned)
    return Split(tuple(learned), tuple(sorted(kept)), documents)


def _tail(windows: int, held_out: int) -> list[int]:
    """Returns the last windows of the only document: a quarter of it at most."""
    return list(range(windows - min(held_out, max(1, windows // _HELD_DOCUMENTS)), windows))


def _in_turn(lists: Sequence[Sequence[int]]) -> list[int]:
    """Returns the first of each list, then the second of each, and so on."""
    return [window for each in zip_longest(*lists) for window in each if window is not None]
