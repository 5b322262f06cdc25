"""Splits the windows of a text into those that a search learns from, those that choose, and those that judge.

Windows are those of ``ropescale eval``: BOS, then as many tokens as the target length leaves; the first begins where
its document does, the others are evenly spaced in it. Whole documents are held out, so that nothing that was learned
from stands in the held-out windows; of a single document, its last windows are. Where there are enough documents, some
of them choose nothing, and judge what was found by their first windows.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise, zip_longest

from ....errors import DataError

CHECKED = 0.2
"""The share of the budget that goes to held-out windows, at most, where they are checked often."""

_HELD_DOCUMENTS = 4
"""One document in so many is held out, and of a single one so great a part."""


LEAST_JUDGES, MOST_JUDGES = 10, 30
"""The documents that judge: a quarter, at least and at most so many."""

ENOUGH = 16
"""The fewest documents of which some judge."""


@dataclass(frozen=True)
class Split:
    """The windows by number, as the corpus has them.

    Attributes:
        learned: those to learn from, in the order of the seed.
        held_out: those that choose, sorted.
        documents: how many documents choose; 0 where windows of the only one do.
        judges: those that judge, sorted, each of a document of its own; none where there are few documents.
    """

    learned: tuple[int, ...]
    held_out: tuple[int, ...]
    documents: int
    judges: tuple[int, ...] = ()


def split(windows: Sequence[int], held_out: int, seed: int, judged: bool = True) -> Split:
    """Splits windows by document.

    Args:
        windows: of each document, how many it has.
        held_out: how many windows choose, at most.
        judged: whether some documents are to judge.

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
    apart = [list(range(first, stop)) for first, stop in pairwise([0, *accumulate(windows)])]
    judges: list[list[int]] = []
    if len(apart) == 1:  # a quarter of the only document at most
        (learned,), documents = apart, 0
        start = len(learned) - min(held_out, max(1, len(learned) // _HELD_DOCUMENTS))
        learned, kept = learned[:start], learned[start:]
    else:
        apart = rng.sample(apart, len(apart))
        if judged and len(apart) >= ENOUGH:
            count = min(MOST_JUDGES, max(LEAST_JUDGES, len(apart) // _HELD_DOCUMENTS))
            judges, apart = apart[:count], apart[count:]
        documents = min(held_out, max(1, len(apart) // _HELD_DOCUMENTS))
        in_turn = chain.from_iterable(zip_longest(*apart[:documents]))  # the first of each document, then the second
        kept = [window for window in in_turn if window is not None][:held_out]
        learned = list(chain.from_iterable(apart[documents:]))
    rng.shuffle(learned)
    return Split(tuple(learned), tuple(sorted(kept)), documents, tuple(sorted(first for first, *_ in judges)))
