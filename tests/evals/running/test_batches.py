"""The plan of a pass: which windows are fed together, known before anything runs."""

from collections import Counter

import numpy as np
from hypothesis import assume, given, strategies as st

from ropescale.evals.scoring.batches import assembled, cost, plan_pass

PLANS = {
    "tokens": st.lists(st.integers(0, 50), min_size=1, max_size=6), "length": st.integers(2, 20),
    "stride": st.integers(1, 19), "bos": st.booleans(), "batch_tokens": st.integers(1, 100),
}  # fmt: skip


@given(**PLANS)
def test_batches_hold_every_window_once_and_are_put_back_in_order(tokens, length, stride, bos, batch_tokens):
    assume(stride < length)
    plan = plan_pass(tokens, length, stride, bos, batch_tokens)
    assert [batch.number for batch in plan.batches] == list(range(len(plan.batches)))
    scored = Counter()
    for batch in plan.batches:
        assert all(feed.window.stop - feed.window.start + bos == batch.positions for feed in batch.feeds)
        assert batch.fed == sum(feed.window.stop - feed.window.start + bos for feed in batch.feeds)
        assert len(batch.feeds) == 1 or batch.fed <= batch_tokens
        scored.update((f.document, t) for f in batch.feeds for t in range(f.window.scored, f.window.stop))
    assert scored == Counter((d, t) for d, n in enumerate(tokens) for t in range(0 if bos else 1, n))
    assert plan.sizes == tuple(max(0, n - (not bos)) for n in tokens)
    assert [batch.positions for batch in plan.batches] == sorted((b.positions for b in plan.batches), reverse=True)
    parts = {}
    for batch in plan.batches:
        made = [np.arange(f.window.scored, f.window.stop) + 1000 * f.document for f in batch.feeds]
        parts[batch.number] = {"nll": np.concatenate(made).astype(np.float32)}
    for number, (n, vector) in enumerate(zip(tokens, assembled(plan, parts, "nll"), strict=True)):
        assert vector.tolist() == [1000 * number + t for t in range(0 if bos else 1, n)]


def test_a_plan_is_the_same_for_the_same_arguments_and_its_hash_tells_others_apart():
    given = {"tokens": [40, 50], "length": 30, "stride": 8, "bos": True, "batch_tokens": 60}
    first = plan_pass(**given)
    assert first == plan_pass(**given) and first.sha256 == plan_pass(**given).sha256
    for change in ({"tokens": [40, 51]}, {"length": 29}, {"stride": 7}, {"bos": False}, {"batch_tokens": 30}):
        assert plan_pass(**(given | change)).sha256 != first.sha256
    long = plan_pass([2**15], 2**15, None, False, 2**15).batches[0]
    assert cost(long) == 2 * 2**15  # attention takes as long as the rest
