"""Evolution and CMA-ES: what they may try, and that they spend what they are given."""

import math
from itertools import pairwise

import pytest
from tiny import documents, llama

from ropescale.evals import search
from ropescale.evals.searching.families.family import EveryPair, Ramp
from ropescale.evals.searching.families.space import Space
from ropescale.evals.searching.methods import covariance, evolution, gradient
from ropescale.evals.searching.methods.asking import Allowance, Reply
from ropescale.rope import Rope

ROPE = Rope(rotary_dim=64, theta=10000.0, original_length=256)
PAIRS = Space({"all": EveryPair(ROPE, 8.0, scaled=False)})
RAMP = Space({"all": Ramp(ROPE, 8.0)})
ALLOWANCE = Allowance(tuple(range(50)), held_out=8, feeds=244, seed=0)


def answered(method, loss, slope=lambda point: ()):
    """Every question of a method, where a point's loss is known, and its gradient; and what it found."""
    asked, ask = [], next(method)
    while True:
        asked.append(ask)
        losses = tuple((loss(point),) * len(ask.windows) for point in ask.points)
        try:
            ask = method.send(Reply(losses, tuple(map(slope, ask.points)) if ask.gradient else ()))
        except StopIteration as end:
            return asked, end.value


def distance(wanted, scales=None):
    scales = scales or [1.0] * len(wanted)
    return lambda point: math.fsum(((a - b) * scale) ** 2 for a, b, scale in zip(point, wanted, scales, strict=True))


def test_the_gradient_begins_at_the_best_of_a_few_starts_and_descends_from_there():
    wanted = RAMP.nearest((3.9, 14.7, math.log(8.4), math.log(1.2)))
    scales = (1.0, 1.0, 10.0, 30.0)
    bowl = distance(wanted, scales)

    def slope(point):
        return tuple(2 * (a - b) * s * s for a, b, s in zip(point, wanted, scales, strict=True))

    asked, found = answered(gradient.search(RAMP, ALLOWANCE), bowl, slope)
    assert sum(ask.forwards for ask in asked) <= ALLOWANCE.feeds
    assert (asked[0].held_out, asked[0].points) == (True, (RAMP.start,))
    assert [point[0] for point in asked[1].points] == [0, 13 / 8, 26 / 8, 39 / 8] and asked[1].forwards == 16
    assert asked[2].points == (min(asked[1].points, key=bowl),) and asked[2].gradient
    assert sum(ask.held_out for ask in asked) <= gradient.CHECKS
    assert bowl(found) < 0.02 * bowl(RAMP.start)


def test_a_small_allowance_begins_at_yarns_default_and_three_checks_without_gain_end_it():
    small = Allowance(tuple(range(9)), held_out=2, feeds=39, seed=0)
    asked, found = answered(gradient.search(RAMP, small), lambda point: point[0] - 0.1, lambda point: (-1.0, 0, 0, 0))
    assert asked[1].gradient and found == RAMP.start  # whatever moves away is worse
    assert sum(ask.held_out for ask in asked) == 1 + gradient.PATIENCE


@pytest.mark.parametrize(("method", "space"), [(evolution.search, PAIRS), (covariance.search, RAMP)])
def test_the_allowance_is_spent_and_not_exceeded(method, space):
    asked, _ = answered(method(space, ALLOWANCE), distance(space.start))
    fed = sum(ask.forwards for ask in asked)
    assert ALLOWANCE.feeds - 4 < fed <= ALLOWANCE.feeds
    assert [ask.held_out for ask in asked] == [True, *[False] * (len(asked) - 2), True]
    assert {ask.windows for ask in asked[1:-1]} == {(0, 1, 2, 3)}


def test_divisors_never_fall_stay_within_bounds_and_are_never_tried_twice():
    wanted = [math.log(1 + 7 * i / 31) for i in range(32)]
    asked, found = answered(evolution.search(PAIRS, ALLOWANCE), distance(wanted))
    tried = [point for ask in asked if not ask.held_out for point in ask.points]
    assert len(set(tried)) == len(tried) == 57 and tried[0] == PAIRS.start
    for point in tried:
        assert all(first <= second for first, second in pairwise(point))
        assert point[0] >= 0 and point[-1] <= math.log(9) + 1e-9
    assert distance(wanted)(found) < distance(wanted)(PAIRS.start)


def test_mutations_are_steps_of_a_hundredth_from_a_neighbour():
    asked, _ = answered(evolution.search(PAIRS, ALLOWANCE), distance(PAIRS.start))
    first, child = (tuple(map(math.exp, point)) for point in asked[1].points[:2])
    changed = [pair for pair in range(1, 32) if child[pair] != pytest.approx(first[pair], rel=1e-12)]
    assert 3 <= len(changed) <= 18  # each with a chance of 0.3
    for pair in changed:
        assert (child[pair] - child[pair - 1]) / 0.01 == pytest.approx(round((child[pair] - child[pair - 1]) / 0.01))


def test_longropes_own_sizes_where_the_budget_has_room_for_them():
    assert evolution.Sizes.within(1344) == evolution.Sizes(64, 32, 16, 16) == evolution.Sizes.within(10**6)
    assert evolution.Sizes.within(57) == evolution.Sizes(8, 4, 2, 2)


def test_cma_finds_the_minimum_of_a_bowl():
    pytest.importorskip("cma")
    wanted = RAMP.nearest((3.4, 14.7, math.log(8.4), math.log(1.2)))
    bowl = distance(wanted, [1 / rate for rate in RAMP.rates])
    asked, found = answered(covariance.search(RAMP, Allowance(tuple(range(9)), 2, 4 * 300, 3)), bowl)
    assert found == pytest.approx(wanted, rel=0.05)
    for ask in asked:
        for point in ask.points:
            assert RAMP.nearest(point) == point


def test_the_same_seed_asks_the_same():
    for method, space in ((evolution.search, PAIRS), (covariance.search, RAMP)):
        runs = [answered(method(space, ALLOWANCE), distance(space.start))[0] for _ in range(2)]
        assert runs[0] == runs[1]


@pytest.mark.parametrize("method", ["evolution", "cma"])
def test_a_whole_search_is_never_worse_than_its_start_on_the_held_out_text(method, one_thread):
    pytest.importorskip("cma")
    result = search(llama(), documents(12, 300), 128, budget_tokens=128 * 40, method=method)
    assert result.found.loss <= result.checks[0].loss and result.spent <= 128 * 40
