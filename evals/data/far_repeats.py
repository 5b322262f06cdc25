"""Which tokens repeat something far back: from token ids alone, so the same for every model, schedule and length.

A token is a *far repeat* when the ``ORDER`` tokens that end with it occur earlier in the document, and the last time
they did so ended at least ``distance`` tokens before. What would help to predict it is then out of the trained window,
and a model that can look further back can copy it. A phrase that came up nearby too is none, whatever came up far back.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

ORDER = 8
"""Tokens that must be the same, the predicted one included: several words, which seldom repeat by chance."""


def last_seen(ids: Sequence[int], order: int = ORDER) -> np.ndarray:
    """Returns how far back the last ``order`` tokens, each one included, occurred before; 0 for never.

    The time is that of sorting, whatever the order.

    Returns:
        int64 [tokens].
    """
    distances = np.zeros(len(ids), np.int64)
    if len(ids) < order:
        return distances
    gram = _grams(np.asarray(ids, dtype=np.int64), order)
    by_gram = np.argsort(gram, kind="stable")  # equal n-grams together, each in order of place
    same = gram[by_gram[1:]] == gram[by_gram[:-1]]
    later, earlier = by_gram[1:][same], by_gram[:-1][same]
    distances[later + order - 1] = later - earlier
    return distances


def far_repeats(ids: Sequence[int], distance: int, order: int = ORDER) -> np.ndarray:
    """Whether each token is a far repeat: bool [tokens]."""
    return last_seen(ids, order) >= distance


def _grams(ids: np.ndarray, order: int) -> np.ndarray:
    """Numbers the n-gram that starts at each place, equal ones alike: int64 [tokens - order + 1]."""
    names = np.unique(ids, return_inverse=True)[1].astype(np.int64)
    kinds = int(names.max()) + 1
    found = names
    for later in range(1, order):
        pairs = found[:-1] * kinds + names[later:]
        found = np.unique(pairs, return_inverse=True)[1].astype(np.int64)
    return found
