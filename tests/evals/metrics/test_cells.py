"""Figures and their intervals as tables write them."""

import pytest

from ropescale.evals.metrics.cells import around, interval_cell, signed
from ropescale.evals.metrics.drawing import tokens

WIDE = [
    (None, None, None, "-"),
    (13.816, None, None, "13.82"),
    (13.816, None, 16.0, "13.82"),
    (13.816, 11.6, 16.0, "13.82 ± 2.2"),
    (10.0, 7.1, 12.9, "10.00 ± 2.9"),  # half of it is 29% of the value
    (10.0, 9.0, 11.5, "10.00 (9.00 to 11.5)"),  # one side is longer than the other by half
    (10.0, 6.9, 13.1, "10.00 (6.90 to 13.1)"),  # 31%: no longer written with ±
    (96.44, 12.3, 756.0, "96.44 (12.3 to 756)"),
    (1234.4, 1200.0, 1268.8, "1,234 ± 34"),
    (2.5e6, 2.4e6, 2.6e6, "2.500e+06 ± 100,000"),
]


@pytest.mark.parametrize(("value", "low", "high", "written"), WIDE)
def test_a_wide_interval_is_written_by_its_bounds(value, low, high, written):
    assert interval_cell(value, low, high) == written


def test_only_a_difference_that_rounds_to_zero_has_no_sign_and_half_an_interval_is_zero_only_where_it_is():
    assert [signed(value) for value in (0.12344, -0.12346, -0.00004)] == ["+0.1234", "-0.1235", "0.0000"]
    halves = [around(0.1, 0.0, 0.2), around(0.000045, 0.0, 0.00009), around(1.0, 1.0, 1.0), around(1.0, None, 1.0)]
    assert halves == [" ± 0.1000", " ± <0.0001", " ± 0.0000", ""]


AROUND_ZERO = [
    (0.0478, -0.0010, 0.0905, " (-0.0010 to +0.0905)"),  # ± 0.0457 would keep away from zero
    (0.0457, 0.0001, 0.0957, " (+0.0001 to +0.0957)"),  # ± 0.0478 would not
    (0.05004, 0.00003, 0.1, " (+3e-05 to +0.1000)"),  # both round to 0.0500
    (-0.05, -0.0991, -0.0009, " ± 0.0491"),
]


@pytest.mark.parametrize(("mean", "low", "high", "written"), AROUND_ZERO)
def test_bounds_are_written_where_a_half_would_disagree_with_them_about_zero(mean, low, high, written):
    assert around(mean, low, high, sign="+") == written


def test_lengths_in_pictures_are_written_in_units_of_1024_where_they_are_multiples():
    assert [tokens(n) for n in (512, 1023, 1024, 1536, 4096, 131072)] == ["512", "1023", "1k", "1536", "4k", "128k"]
