"""Values of another type or out of their range are named."""

import math

import pytest
from typing_extensions import TypedDict

from ropescale.evals.checking import Damaged, Length, fitting


class Values(TypedDict, total=False):
    """A value of each kind."""

    number: float
    length: Length
    names: dict[str, list[str]]


WRONG = [
    ({"number": math.nan}, "has a wrong value in 'number': Input should be a finite number"),
    ({"number": "1"}, "has a wrong value in 'number': Input should be a valid number"),
    ({"length": 0}, "has a wrong value in 'length': Input should be greater than or equal to 1"),
    ({"names": {"a": ["x", 3]}}, "has a wrong value in 'names.a.1': Input should be a valid string"),
    ([], "has a wrong value: Input should be a valid dictionary"),
]


@pytest.mark.parametrize(("value", "said"), WRONG)
def test_a_wrong_value_is_named_by_its_place(value, said):
    with pytest.raises(Damaged) as caught:
        fitting(value, Values)
    assert str(caught.value) == said
    assert fitting({"number": 1.5, "other": None}, Values) == {"number": 1.5, "other": None}
