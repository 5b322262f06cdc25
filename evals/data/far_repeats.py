"""Finds tokens that repeat distant context, by token ids, independent of model, schedule and length.

A token is a *far repeat* if the ``ORDER`` tokens that end with it occur earlier in the document, and their last
occurrence ended at least ``distance`` tokens before. That occurrence is then out of the trained window, and a model
that looks further back can copy it. A phrase that also occurs nearby is not a far repeat.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

ORDER = 8
"""The number of equal tokens, including the predicted one; shorter repeats occur by chance."""


def last_seen(ids: Sequence[int], order: int = ORDER) -> np.ndarray:
    """Returns, per token, the distance to the last occurrence of its final ``order`` tokens; 0 for none.

    Sorts the tokens once for each of them.

    Returns:
        int64 [tokens].
    """
    distances = np.zeros(len(ids), np.int64)
    if len(ids) < order:
        return distances
    names = gram = np.unique(np.asarray(ids, dtype=np.int64), return_inverse=True)[1].astype(np.int64)
    for later in range(1, order):  # numbers the n-grams by their start; equal ones get the same number
        pairs = gram[:-1] * (int(names.max()) + 1) + names[later:]
        gram = np.unique(pairs, return_inverse=True)[1].astype(np.int64)
    by_gram = np.argsort(gram, kind="stable")  # puts equal n-grams together, in their order in the text
    same = gram[by_gram[1:]] == gram[by_gram[:-1]]
    later, earlier = by_gram[1:][same], by_gram[:-1][same]
    distances[later + order - 1] = later - earlier
    return distances


def far_repeats(ids: Sequence[int], distance: int) -> np.ndarray:
    """Returns the mask of far repeats, bool [tokens]."""
    return last_seen(ids) >= distance
