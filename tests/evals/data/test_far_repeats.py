"""Far repeats, against a search that looks at every earlier place."""

import math
import re

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st
from tiny import llama

from ropescale.evals import perplexity
from ropescale.evals.metrics.cells import digits
from ropescale.evals.metrics.far_repeats import ORDER, far_repeats, last_seen


def naive(ids, order):
    """How far back the last ``order`` tokens were there before; 0 for never."""
    found = []
    for t in range(len(ids)):
        gram = ids[t - order + 1 : t + 1] if t >= order - 1 else None
        earlier = [t - s for s in range(order - 1, t) if gram is not None and ids[s - order + 1 : s + 1] == gram]
        found.append(min(earlier, default=0))
    return found


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 3), max_size=60), st.integers(1, 5))
@example([0, 1, 2, 3] * 15, 34)
def test_every_repeat_is_found_and_its_last_place(ids, order):
    assert last_seen(ids, order).tolist() == naive(ids, order)


def test_what_came_up_nearby_too_is_no_far_repeat():
    phrase, gap = list(range(10, 18)), [0, 1, 2, 3, 4] * 8
    far = far_repeats([*phrase, *gap, *phrase, 5, *phrase], distance=40)
    assert np.flatnonzero(far).tolist() == [len(phrase) + len(gap) + ORDER - 1]  # of the second, not the third


def test_the_perplexities_are_those_of_the_marked_tokens(tmp_path):
    generator = np.random.default_rng(1)
    ids = [generator.integers(0, 61, 140).tolist() for _ in range(5)]
    for document in ids:
        document[110:130] = document[10:30]  # 100 back: 20 - 7 far repeats of 8 tokens
    result = perplexity(llama(), ids, [64, 140], ["linear:factor=4"])
    labels = ["as-is", "linear:factor=4", "truncation"]
    assert [(each.schedule, each.length) for each in result.repeats] == [(label, 140) for label in labels]
    nll = [*(run.nll for run in result.passes), result.truncated(140)]
    for found, values in zip(result.repeats, nll, strict=True):
        marked = np.concatenate([np.array(naive(document, ORDER))[1:] >= 64 for document in ids])
        losses = np.concatenate(values).astype(np.float64)
        assert (found.far_tokens, found.other_tokens) == (5 * 13, 5 * 139 - 5 * 13)
        assert found.far_ppl == pytest.approx(math.exp(losses[marked].mean()), rel=1e-6)
        assert found.other_ppl == pytest.approx(math.exp(losses[~marked].mean()), rel=1e-6)
        assert found.far_low < found.far_ppl < found.far_high
        assert (found.distance, found.order) == (64, 8)
    shown = re.search(r"\| truncation +\| +(\S+) .*?\| +(\S+) ", result.to_markdown().split("Far repeats")[1]).groups()
    assert shown == (digits(found.far_ppl, 4), digits(found.other_ppl, 4))
    said = "Far repeats, the tokens that complete a sequence of 8 tokens last seen 64 or more tokens earlier (65 of "
    assert f"{said}695 at 140, in 5 of 5 documents, 5 of 5 windows), and all other tokens:" in result.to_markdown()


def test_a_distance_of_ones_own_and_none_at_all():
    ids = [[*range(20), *range(20), *range(20)]]
    assert perplexity(llama(), ids, [60], repeat_distance=20).repeats[0].far_tokens == 2 * 20 - 7
    (none,) = perplexity(llama(), ids, [60], repeat_distance=21).repeats
    assert (none.far_tokens, none.far_ppl, none.far_low) == (0, None, None) and none.other_tokens == 59
    assert "far repeats" not in perplexity(llama(), ids, [60], repeat_distance=21).to_markdown()
