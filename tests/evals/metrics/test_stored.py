"""Ranges of tokens, as masks: closed forms."""

import numpy as np

from ropescale.evals.metrics.stored import kept, ranges_of


def test_ranges_and_masks_are_the_same_tokens():
    mask = np.array([True, True, False, False, True, False, True])
    assert ranges_of(mask).tolist() == [[0, 2], [4, 5], [6, 7]]
    assert np.array_equal(~np.isnan(kept(np.ones(7, np.float32), ranges_of(mask), 0)), mask)


def test_a_range_that_starts_before_the_first_token_counts_from_it():
    """The values are those of the tokens 3, 4, 5 and 6."""
    found = kept(np.arange(4.0), [(0, 2), (1, 4), (6, 9)], 3)
    assert np.array_equal(found, [0, np.nan, np.nan, 3], equal_nan=True)
