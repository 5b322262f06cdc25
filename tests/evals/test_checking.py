"""Stored values are looked at before they are used."""

from __future__ import annotations

import json
import math
import sys

import pytest
from typing_extensions import TypedDict

from ropescale.evals.checking import Count, Positive, Shape, Share, Wrong


class Values(TypedDict, total=False):
    """A value of each kind."""

    number: float
    share: Share
    positive: Positive
    count: Count
    names: dict[str, list[str]]


VALUES: Shape[Values] = Shape(Values)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 10**400, -(10**400), "1", None, True])
def test_a_number_is_finite(value) -> None:
    with pytest.raises(Wrong, match=r"^has \S+ for number and not a (finite|valid) number$"):
        VALUES({"number": value})


@pytest.mark.parametrize("value", [0, -0.0, sys.float_info.max, -sys.float_info.max, 2**1023, 5e-324])
def test_every_finite_number_is_one(value) -> None:
    VALUES({"number": value})
    assert math.isfinite(float(json.loads(json.dumps(value))))


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("positive", -1, "greater than or equal to 0"),
        ("share", 2, "less than or equal to 1"),
        ("count", 2**53 + 1, "less than or equal to 9007199254740992"),
        ("count", 1.0, "a valid integer"),
        ("count", True, "a valid integer"),
    ],
)
def test_the_range_of_a_number_is_said(name, value, words) -> None:
    with pytest.raises(Wrong, match=f"^has {json.dumps(value)} for {name} and not {words}$"):
        VALUES({name: value})


def test_a_wrong_value_is_named_by_its_place_in_one_short_line() -> None:
    with pytest.raises(Wrong, match=r"^has 3 for names\.a\[1\] and not a valid string$"):
        VALUES({"names": {"a": ["x", 3]}})
    with pytest.raises(Wrong) as caught:
        VALUES({"names": {"\n" * 10**6: ["x" * 10**6, {}, "x"]}})
    assert len(str(caught.value)) < 300 and "\n" not in str(caught.value)
