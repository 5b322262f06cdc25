"""Lengths as people write them."""

from typing import Any

import numpy as np
import pytest

from ropescale.errors import DataError
from ropescale.lengths import parse_length, parse_lengths

TEXTS = {4096: 4096, "4k": 4096, " 4K ": 4096, "1m": 1_048_576, "1.5k": 1536, "2048.0": 2048, np.int64(7): 7}


@pytest.mark.parametrize(("text", "tokens"), TEXTS.items())
def test_a_k_is_1024_tokens_and_an_m_1024_of_them(text: str | int, tokens: int) -> None:
    assert parse_length(text) == tokens


NO_LENGTHS = [
    ("", "'' is not a length; write a number of tokens like 4096, 4k, 128k or 1m"), ("4kk", "'4kk' is not a length"),
    ("nan", "'nan' is not a length"), ("٤٠٩٦", "is not a length"), (0, "the length 0 is below 1"),
    ("1.3k", "'1.3k' is 1331.2 tokens; a length is a whole number of tokens"), (True, "not True"),
    (4096.0, "not 4096.0"), (None, "not None"), pytest.param(10**400, "beyond any context", id="10**400"),
    (np.array([1, 2]), "not [1, 2]"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), NO_LENGTHS)
def test_what_is_not_a_length_is_one_clear_sentence(text: Any, message: str) -> None:
    with pytest.raises(DataError) as caught:
        parse_length(text)
    assert message in str(caught.value) and "\n" not in str(caught.value)


NONE = [(none, "no length is given; write lengths like") for none in ("", " , ", [])]


@pytest.mark.parametrize(("given", "message"), [*NONE, ("2k,4x", "'4x' is not")])
def test_no_length_at_all_is_an_error_and_the_one_that_is_wrong_is_named(given: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        parse_lengths(given)


@pytest.mark.parametrize(("given", "lengths"), [("4k, 2048,2k,", [4096, 2048]), (["1k", 3], [1024, 3]), ("7", [7])])
def test_several_lengths_keep_their_order_and_come_once(given: Any, lengths: list[int]) -> None:
    assert parse_lengths(given) == lengths
