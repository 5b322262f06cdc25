"""Bootstrap intervals where the answer is known in closed form."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ropescale.evals.results.statistics import RESAMPLES, block_of, by_block, by_document, ratio


def test_two_documents_are_drawn_in_three_ways():
    # r = (10 + 30) / (4 + 6) = 4; either twice: 2.5 and 5, each with probability 1/4.
    assert by_document([10, 30], [4, 6], seed=0) == (2.5, 5.0)
    assert by_document([10, 30], [4, 6], seed=0, level=0.4) == (4.0, 4.0)


def test_of_many_documents_the_interval_is_that_of_the_formula():
    generator = np.random.default_rng(0)
    counts = generator.integers(100, 1000, 300)
    sums = counts * generator.normal(3.0, 0.4, 300)
    low, high = by_document(sums.tolist(), counts.tolist(), seed=0) or (0, 0)
    formula = ratio(sums.tolist(), counts.tolist())
    assert high - low == pytest.approx((formula.high or 0) - (formula.low or 0), rel=0.06)
    assert (low + high) / 2 == pytest.approx(formula.mean, abs=0.01)


def test_the_seed_draws_the_same_documents_for_every_schedule():
    """So intervals of two schedules move together; a constant shift shifts the interval by as much."""
    low, high = by_document([1, 2, 4, 9], [1, 1, 1, 1], seed=7) or (0, 0)
    assert by_document([3, 4, 6, 11], [1, 1, 1, 1], seed=7) == (low + 2, high + 2)
    assert RESAMPLES >= 2000


def test_one_document_or_a_short_one_has_no_interval():
    assert by_document([3.0], [2], seed=0) is None
    assert by_block(np.zeros(8 * 1024 - 1), seed=0) is None


@pytest.mark.parametrize(("tokens", "block"), [(8191, None), (8192, 1024), (65536, 2048), (10**6, 4096)])
def test_blocks_are_of_one_to_four_thousand_tokens(tokens, block):
    assert block_of(tokens) == block


def test_blocks_of_independent_tokens_give_the_usual_error():
    values = np.random.default_rng(1).normal(0.0, 2.0, 200_000)
    low, high = by_block(values, seed=0) or (0, 0)
    assert (high - low) / 2 == pytest.approx(1.96 * 2 / math.sqrt(200_000), rel=0.15)


def test_blocks_see_that_neighbours_hang_together():
    """AR(1) with phi = 0.95: the error of the mean is sqrt((1 + phi) / (1 - phi)) = 6.24 times that of noise."""
    noise, values = np.random.default_rng(2).normal(size=400_000), np.empty(400_000)
    level = 0.0
    for number, step in enumerate(noise):
        values[number] = level = 0.95 * level + step
    low, high = by_block(values, seed=0) or (0, 0)
    independent = 1.96 * values.std() / math.sqrt(len(values))
    assert (high - low) / 2 / independent == pytest.approx(math.sqrt(1.95 / 0.05), rel=0.15)


def test_every_token_weighs_the_same():
    """On the circle each value is in as many blocks; a mean of ones with a bump at the very end stays in sight."""
    values = np.concatenate([np.zeros(16383), [16384.0]])
    low, high = by_block(values, seed=0) or (0, 0)
    assert low == 0.0 and 1.0 < high < 6.0
