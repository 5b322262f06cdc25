"""Which tokens are fed and scored, by hand."""

import pytest

from ropescale.errors import DataError
from ropescale.evals.windows import Window, check_lengths, position_bins, prefix


def test_a_length_with_bos_feeds_and_scores_one_token_less():
    assert prefix(8, bos=True) == Window(start=0, stop=7, scored=0)
    assert prefix(8, bos=True).count == 7


def test_a_length_without_bos_cannot_score_token_zero():
    assert prefix(8, bos=False) == Window(start=0, stop=8, scored=1)
    assert prefix(8, bos=False).count == 7


def test_a_length_of_one_leaves_nothing_to_score():
    with pytest.raises(DataError, match="length 1 leaves no token"):
        prefix(1, bos=True)


def test_lengths_come_out_ascending_and_once():
    assert check_lengths([8, 2, 8, 4]) == (2, 4, 8)


@pytest.mark.parametrize("lengths", [[], [0], [-3], [1], [2.5], ["8"], [True]])
def test_lengths_that_cannot_be_are_refused(lengths):
    with pytest.raises(DataError):
        check_lengths(lengths)


@pytest.mark.parametrize("bos", [True, False])
@pytest.mark.parametrize("length", [2, 3, 17, 64, 1000])
def test_position_bins_cover_every_scored_token_once(length, bos):
    window = prefix(length, bos)
    covered = [index for low, high in position_bins(window, bos) for index in range(low, high)]
    assert covered == list(range(window.count))


def test_position_bins_grow_by_the_square_root_of_two():
    assert position_bins(prefix(17, True), True) == [
        (0, 1),
        (1, 2),
        (2, 3),
        (3, 5),
        (5, 7),
        (7, 10),
        (10, 15),
        (15, 16),
    ]
