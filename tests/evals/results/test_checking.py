"""Stored values are looked at before they are used."""

from __future__ import annotations

import json
import math
import sys

import pytest

from ropescale.evals.results.checking import Wrong, number


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 10**400, -(10**400), "1", None, True])
def test_a_number_is_finite(value) -> None:
    with pytest.raises(Wrong, match=r"^has \S+ for here and not a finite number$"):
        number()(value, "here")


@pytest.mark.parametrize("value", [0, -0.0, sys.float_info.max, -sys.float_info.max, 2**1023, 5e-324])
def test_every_finite_number_is_one(value) -> None:
    number()(value, "here")
    assert math.isfinite(float(json.loads(json.dumps(value))))


@pytest.mark.parametrize(
    ("check", "value", "words"),
    [
        (number(0), -1, "a finite number of 0 or more"),
        (number(high=1), 2, "a finite number of 1 or less"),
        (number(0, 1), 2, "a finite number from 0 to 1"),
    ],
)
def test_the_range_of_a_number_is_said_without_infinities(check, value, words) -> None:
    with pytest.raises(Wrong, match=f"^has {value} for here and not {words}$"):
        check(value, "here")
