"""Where the gradient begins, where it goes, and what it spends."""

import math

import pytest
import torch

from ropescale.evals.searching import gradient
from ropescale.evals.searching.metrics import Trial
from ropescale.evals.searching.search_space import Ramp, Space
from ropescale.evals.searching.windows import CHECKS, Budget
from ropescale.rope import Rope

RAMP = Space({"all": Ramp(Rope(rotary_dim=64, theta=10000.0, original_length=256), 8.0)})
WANTED = RAMP.nearest((3.9, 14.7, math.log(8.4), math.log(1.2)))


class Trials:
    """Trials of a loss that is known, with its gradient; on one window of one token each."""

    def __init__(self, loss, slope):
        self.loss, self.slope, self.tried, self.checked, self.starts, self.fed = loss, slope, [], [], [], 0

    def check(self, point):
        self.checked.append(Trial(self.fed, point, self.loss(point)))
        return self.checked[-1]

    def compare(self, points, windows):
        self.starts, self.fed = points, self.fed + len(points) * len(windows)
        return [Trial(self.fed, point, self.loss(point)) for point in points]

    def gradient(self, point, windows):
        self.tried.append(point)
        self.fed += len(windows)
        return torch.tensor(self.slope(point), dtype=torch.float64)


def test_the_gradient_begins_at_the_best_of_a_few_starts_and_descends_from_there():
    scales = (1.0, 1.0, 10.0, 30.0)

    def bowl(point):
        return math.fsum(((a - b) * scale) ** 2 for a, b, scale in zip(point, WANTED, scales, strict=True))

    def slope(point):
        return [2 * (a - b) * scale**2 for a, b, scale in zip(point, WANTED, scales, strict=True)]

    budget, trials = Budget(244, 1, 8), Trials(bowl, slope)
    found = gradient.search(RAMP, budget, range(50), trials)
    assert trials.fed + 8 * len(trials.checked) <= 244
    assert trials.checked[0].point == RAMP.start and len(trials.checked) <= CHECKS
    assert trials.starts == RAMP.starts and len(set(trials.starts)) == 4
    assert trials.tried[0] == min(trials.starts, key=bowl)
    assert found == min(trials.checked, key=lambda trial: trial.loss) and found.loss < 0.02 * bowl(RAMP.start)


def test_a_small_budget_begins_at_yarns_default_and_three_checks_without_gain_end_it():
    trials = Trials(lambda point: point[0] - 0.1, lambda point: (-1.0, 0, 0, 0))
    found = gradient.search(RAMP, Budget(39, 1, 2), range(9), trials)
    assert not trials.starts and found.point == RAMP.start == trials.tried[0]  # whatever moves away is worse
    assert len(trials.checked) == 1 + gradient.PATIENCE


def test_a_step_is_adams_with_a_rate_for_each_number():
    """The oracle: algorithm 1 of Kingma and Ba (2014, arXiv:1412.6980), by hand; on slopes that leave no bound."""
    trials = Trials(lambda point: 1.0, lambda point: [math.sin(3 * value + 1) for value in point])
    gradient.search(RAMP, Budget(39, 1, 2), range(9), trials)
    first, second = 0.9, 0.99
    point, moments = RAMP.start, [(0.0, 0.0)] * 4
    for number, tried in enumerate(trials.tried, 1):
        assert tried == pytest.approx(point, rel=1e-12)
        slopes = trials.slope(point)
        moments = [(first * m + (1 - first) * g, second * v + (1 - second) * g * g)
                   for (m, v), g in zip(moments, slopes, strict=True)]  # fmt: skip
        decay = 0.5 * (1 + math.cos(math.pi * (number - 1) / 13))
        moved = [m / (1 - first**number) / (math.sqrt(v / (1 - second**number)) + 1e-8) for m, v in moments]
        numbers = zip(point, RAMP.rates, moved, strict=True)
        point = RAMP.nearest([value - decay * rate * move for value, rate, move in numbers])
    assert len(trials.tried) == 13
