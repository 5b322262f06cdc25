"""Error bars against published t tables, and against a calculation by hand."""

import dataclasses
import math

import numpy as np
import pytest

from ropescale.evals.statistics import intervals
from ropescale.evals.statistics.intervals import Estimate, average, consecutive, familywise, ratio, t_quantile, wilson

QUANTILES = [
    (0.975, 1, 12.706), (0.975, 2, 4.303), (0.975, 4, 2.776), (0.975, 10, 2.228), (0.975, 30, 2.042),
    (0.975, 120, 1.980), (0.95, 5, 2.015), (0.995, 10, 3.169), (0.9995, 3, 12.924),
]  # fmt: skip


@pytest.mark.parametrize(("probability", "degrees", "published"), QUANTILES)
def test_t_quantiles_are_those_of_the_published_table(probability, degrees, published):
    assert t_quantile(probability, degrees) == pytest.approx(published, abs=5e-4) and t_quantile(0.5, degrees) == 0


def test_incomplete_beta_has_its_closed_forms():
    assert intervals.incomplete_beta(1, 1, 0.3) == pytest.approx(0.3)
    assert intervals.incomplete_beta(3, 1, 0.9) == pytest.approx(0.9**3)
    assert intervals.incomplete_beta(0.5, 0.5, 0.25) == pytest.approx(2 / math.pi * math.asin(0.5))


def test_without_skewness_and_of_one_size_it_is_students_interval():
    estimate = ratio([4.0, 8.0, 12.0, 16.0, 20.0], [4] * 5)  # 1, 2, 3, 4 and 5 nats: s^2 = 5 / 2
    assert (estimate.low, estimate.high) == pytest.approx([3 + sign * 2.776445 * math.sqrt(0.5) for sign in (-1, 1)])


def test_a_verdict_is_of_the_average_document_and_allows_five_times_for_skewness():
    """Eleven documents without a difference and one with one nat, in 1 to 1,000 tokens: they weigh the same."""
    level, t = familywise(10), t_quantile(0.5 + 0.95**0.1 / 2, 11)
    assert level == pytest.approx(0.99488, abs=1e-5) and familywise(1) == 0.95
    found = average([0] * 11 + [1000], [1, 10, 100, 1000] * 3, level)
    error, skewness = 1 / 12, (12 * 11) ** 0.5 / 10 * 10 / 11**0.5 / 12**0.5  # of the mean
    assert (found.mean, found.agreeing, found.documents) == (pytest.approx(1 / 12), 1, 12)
    assert found.high == pytest.approx(1 / 12 + error * (t + 5 * skewness * (1 + 2 * t * t) / 6), rel=1e-4)
    assert found.low == pytest.approx(1 / 12 - error * t) and found.per_token == pytest.approx(1000 / 3333)
    assert average([1] * 9, [1] * 9).low is None and average([0.0], [0]).sign is None


@pytest.mark.parametrize(("long", "sign"), [(1, -1), (-90, 0)])
def test_an_average_whose_sign_is_not_that_of_all_tokens_is_undecided(long, sign):
    """Twelve documents lose about a nat each; in one of them, of half of all tokens, the loss rises."""
    means = [-1 - 0.02 * n for n in range(11)] + [-1.1]
    counts = [10] * 11 + [1]
    found = average([m * c for m, c in zip(means, counts, strict=True)], counts)
    other = dataclasses.replace(found, per_token=found.per_token * (1 if long == 1 else -1))
    assert other.high < 0 and (other.sign, (-other).sign) == (sign, -sign)


@pytest.mark.parametrize(("values", "sign"), [([1, 2, 3], 1), ([-1, -2, -3], -1), ([1, -2, 3], 0)])
def test_the_sign_of_an_estimate_is_that_of_its_interval(values, sign):
    assert ratio(values * 4, [1] * 12).sign == sign and ratio(values, [1] * 3).sign is None


def test_the_side_of_the_long_tail_is_longer():
    # Seven zeros and a one: SE = 1 / 8, and the adjusted skewness, 2.828, is 1 for the mean of eight.
    low, high = ratio([0] * 7 + [1], [1] * 8).low, ratio([0] * 7 + [1], [1] * 8).high
    t = 2.364624
    assert (low, high) == pytest.approx((0.125 * (1 - t), 0.125 * (1 + t + (1 + 2 * t * t) / 6)))
    assert ratio([0] * 7 + [-1], [1] * 8) == Estimate(-0.125, -high, -low, "documents")


def test_degrees_of_freedom_are_those_of_the_quadratic_form():
    """Bell and McCaffrey: the sum of the eigenvalues squared over the sum of their squares, by numpy."""
    sizes = np.array([1.0, 2.0, 7.0, 3.0, 1.0])
    h = sizes / sizes.sum()
    residuals = np.eye(5) - np.outer(np.ones(5), h)  # the levels' deviations from their weighted mean
    form = residuals.T @ np.diag(h**2 / (1 - 2 * h + h @ h)) @ residuals
    eigenvalues = np.linalg.eigvalsh(form)
    degrees = eigenvalues.sum() ** 2 / (eigenvalues**2).sum()
    levels = np.array([3.0, 1.0, 2.0, 2.5, 2.2])
    estimate = ratio(levels * sizes, sizes)
    error = math.sqrt(levels @ form @ levels)
    assert estimate.high - estimate.mean == pytest.approx(t_quantile(0.975, round(degrees, 2)) * error)
    assert estimate.mean == pytest.approx(levels @ h) and degrees < 4


def test_a_document_without_tokens_does_not_count_and_fewer_than_five_others_have_no_interval():
    assert ratio([1.0, 0.0, 5.0] * 3, [1, 0, 2] * 3) == ratio([1.0, 5.0] * 3, [1, 2] * 3)
    assert ratio([10, 0, 20, 2, 8], [4, 0, 4, 4, 4]) == Estimate(2.5, None, None)


def coverage(levels, sizes, truth):
    """The share of trials whose interval holds the truth; arrays [trials, documents]."""
    found = (ratio(row.tolist(), size.tolist()) for row, size in zip(levels * sizes, sizes, strict=True))
    return sum(each.low <= truth <= each.high for each in found) / len(levels)


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    """One cell of docs/intervals.md: of 8 documents three in ten are of a genre that costs a nat more."""
    draws = np.random.default_rng(0)
    levels = (draws.random((2000, 8)) < 0.3) + 0.4 * draws.normal(size=(2000, 8))
    assert 0.93 <= coverage(levels, np.ones((2000, 8)), 0.3) <= 0.98
    sizes = np.tile([1.0, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4], (1000, 1))
    assert 0.94 <= coverage(draws.normal(size=(1000, 12)), sizes, 0.0) <= 0.98


def test_consecutive_windows_are_cut_into_blocks():
    # Nine windows make three blocks of three, with the sums 6, 15 and 24, and the weights 3, 3 and 3.
    estimate = consecutive(range(1, 10), [1] * 9)
    assert (estimate.mean, estimate.over) == (pytest.approx(5.0), "windows in 3 blocks")
    assert (estimate.high - 5.0) == pytest.approx(4.302653 * 3 / math.sqrt(3), rel=1e-6)
    assert [intervals.blocks_of(windows) for windows in (6, 8, 16, 32, 64, 128)] == [3, 3, 3, 4, 6, 8]


def test_too_few_windows_have_no_interval():
    assert consecutive([1.0] * 7, [2] * 7) == Estimate(0.5, None, None)
    assert consecutive([1.0, 2.0] * 4, [1] * 8).low is not None
    assert [intervals.rests_on_windows([2] * documents) for documents in (7, 8)] == [True, False]


def test_an_interval_over_windows_allows_for_neighbours_that_hang_together():
    """AR(1) with phi = 0.5: if the windows were independent, their t interval would cover about 75%."""
    noise = np.random.default_rng(3).normal(size=(1000, 74))
    levels = [noise[:, 0]]
    for step in noise.T[1:]:
        levels.append(0.5 * levels[-1] + step)
    texts = np.stack(levels[10:], axis=1)
    found = [consecutive(text, [1] * 64) for text in texts]
    independent = [ratio(text, [1] * 64) for text in texts]
    hits, naive = (sum(each.low < 0 < each.high for each in way) / 1000 for way in (found, independent))
    assert 0.92 <= hits <= 0.965 and naive < 0.8


NEWCOMBE = [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)]


@pytest.mark.parametrize(("hits", "trials", "low", "high"), NEWCOMBE)
def test_wilson_intervals_are_those_of_newcombe_1998(hits, trials, low, high):
    """Statistics in Medicine 17, table I, method 3."""
    assert wilson(hits, trials) == pytest.approx((low, high), abs=5e-5)


def test_wilson_bounds_solve_the_score_equation_are_symmetric_and_end_at_0_and_1():
    for bound in wilson(13, 40, level=0.9):
        assert abs(13 / 40 - bound) / math.sqrt(bound * (1 - bound) / 40) == pytest.approx(1.6448536, abs=1e-6)
    assert wilson(0, 7)[0] == 0.0 and wilson(7, 7)[1] == 1.0
    assert wilson(3, 10) == pytest.approx([1 - bound for bound in reversed(wilson(7, 10))])
    with pytest.raises(ValueError, match="at least one trial"):
        wilson(0, 0)
