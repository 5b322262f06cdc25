"""Finds tokens that repeat distant context. The result depends only on the token ids.

A token is a *far repeat* if the ``ORDER`` tokens that end with the token occur earlier in the document, and their last
occurrence ended at least ``distance`` tokens before. If ``distance`` is the trained length, that occurrence is outside
the trained window, and a model that looks further back can copy from it. A phrase that also occurs nearby is not a far
repeat.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

ORDER = 8
"""The number of repeated tokens, including the predicted one. Shorter repeats also occur by chance."""


def last_seen(ids: Sequence[int], order: int = ORDER) -> np.ndarray:
    """Returns, per token, the distance to the last earlier occurrence of the ``order`` tokens that end with the token.

    The distance is 0 if there is no such occurrence.

    Returns:
        int64 [tokens].
    """
    distances = np.zeros(len(ids), np.int64)
    if len(ids) < order:
        return distances
    names = gram = _numbered(np.asarray(ids, dtype=np.int64))
    known = most = int(names.max()) + 1
    for later in range(1, order):  # gives each n-gram a number, by its start; equal n-grams get the same number
        if most > 2**62 // known:
            gram = _numbered(gram)
            most = int(gram.max()) + 1
        gram = gram[:-1] * known + names[later:]
        most *= known
    by_gram = np.argsort(gram, kind="stable")  # equal n-grams are adjacent, in the order of the text
    same = gram[by_gram[1:]] == gram[by_gram[:-1]]
    later, earlier = by_gram[1:][same], by_gram[:-1][same]
    distances[later + order - 1] = later - earlier
    return distances


def _numbered(values: np.ndarray) -> np.ndarray:
    """Returns the number of each value among the different ones, int64."""
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def far_repeats(ids: Sequence[int], distance: int) -> np.ndarray:
    """Returns a mask of the far repeats, bool [tokens]."""
    return last_seen(ids) >= distance
