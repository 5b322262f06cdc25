"""The tokens that are fed and scored, by hand."""

import math

import pytest
from hypothesis import assume, given, strategies as st

from ropescale.errors import DataError
from ropescale.evals.data.windows import Window, check_lengths, check_stride, position_bins, prefix, sliding


@pytest.mark.parametrize(("bos", "fed"), [(True, Window(0, 7, scored=0)), (False, Window(0, 8, scored=1))])
def test_a_length_with_bos_feeds_one_token_less_and_without_it_cannot_score_token_zero(bos, fed):
    assert prefix(8, bos) == fed and fed.count == 7


def test_lengths_come_out_ascending_and_once():
    assert check_lengths([8, 2, 8, 4]) == (2, 4, 8)
    assert check_lengths(256) == (256,)
    assert check_lengths("2k,256") == check_lengths(["2k", 256]) == (256, 2048)


@pytest.mark.parametrize("lengths", [[], [0], [-3], [1], [2.5], ["eight"], "", [True]])
def test_lengths_that_cannot_be_are_refused(lengths):
    with pytest.raises(DataError):
        check_lengths(lengths)


def test_position_bins_cover_every_position_once_and_grow_by_the_square_root_of_two():
    for stop in (2, 3, 17, 64, 1000):
        covered = [position for low, high in position_bins(stop) for position in range(low, high)]
        assert covered == list(range(1, stop))
    assert position_bins(17) == [(1, 2), (2, 3), (3, 4), (4, 6), (6, 8), (8, 11), (11, 16), (16, 17)]


@given(tokens=st.integers(0, 60), length=st.integers(2, 20), stride=st.integers(1, 19), bos=st.booleans())
def test_every_token_is_scored_once_with_at_least_the_context_promised(tokens, length, stride, bos):
    assume(stride < length)
    wide, found = length - bos, list(sliding(tokens, length, stride, bos))
    assert [t for w in found for t in range(w.scored, w.stop)] == list(range(0 if bos else 1, tokens))
    assert all(w.start == k * stride and w.stop - w.start <= wide for k, w in enumerate(found))
    for window in found[1:]:
        assert all(wide - stride <= t - window.start <= wide - 1 for t in range(window.scored, window.stop))
        assert window.scored - window.start + bos >= 1  # something comes before it
    if tokens > wide:  # the count of windows
        assert len(found) == 1 + math.ceil((tokens - wide) / stride)


def test_a_stride_that_would_skip_tokens_is_refused():
    check_stride(7, [8, 16])
    check_stride(None, [8])
    with pytest.raises(DataError, match=r"stride 8 .*length 8 .*at most 7"):
        check_stride(8, [16, 8])
