"""What the gradient tries, and what it spends."""

import math

from ropescale.evals.searching import gradient
from ropescale.evals.searching.gradient import QueryLosses, TokenBudget
from ropescale.evals.searching.search_space import Ramp, Space
from ropescale.rope import Rope

ROPE = Rope(rotary_dim=64, theta=10000.0, original_length=256)
RAMP = Space({"all": Ramp(ROPE, 8.0)})
ALLOWANCE = TokenBudget(tuple(range(50)), held_out=8, feeds=244)


def answered(method, loss, slope=lambda point: ()):
    """Every question of a method, where a point's loss is known, and its gradient; and what it found."""
    asked, query = [], next(method)
    while True:
        asked.append(query)
        losses = tuple((loss(point),) * len(query.windows) for point in query.points)
        try:
            query = method.send(QueryLosses(losses, tuple(map(slope, query.points)) if query.gradient else ()))
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
    assert sum(query.forwards for query in asked) <= ALLOWANCE.feeds
    assert (asked[0].held_out, asked[0].points) == (True, (RAMP.start,))
    assert [point[0] for point in asked[1].points] == [0, 13 / 8, 26 / 8, 39 / 8] and asked[1].forwards == 16
    assert asked[2].points == (min(asked[1].points, key=bowl),) and asked[2].gradient
    assert sum(query.held_out for query in asked) <= gradient.CHECKS
    assert bowl(found) < 0.02 * bowl(RAMP.start)


def test_a_small_allowance_begins_at_yarns_default_and_three_checks_without_gain_end_it():
    small = TokenBudget(tuple(range(9)), held_out=2, feeds=39)
    asked, found = answered(gradient.search(RAMP, small), lambda point: point[0] - 0.1, lambda point: (-1.0, 0, 0, 0))
    assert asked[1].gradient and found == RAMP.start  # whatever moves away is worse
    assert sum(query.held_out for query in asked) == 1 + gradient.PATIENCE
