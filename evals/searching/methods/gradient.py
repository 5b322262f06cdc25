"""Gradient descent in the numbers of a schedule: Adam with a rate that decays, and averaged iterates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice

from ..families.family import Point
from ..families.space import Space
from .asking import WINDOWS, Allowance, Ask, Method, best

BATCH = 2
"""Windows of a step."""

CHECKS = 6
"""How often the held-out windows are fed, the start included."""

AVERAGING = 0.1
"""How much of the average each iterate replaces."""

TRIED = 0.1
"""The share of the allowance that may go to trying where to begin."""

PATIENCE = 3
"""Checks in a row without a better loss, after which the search ends."""


@dataclass
class Adam:
    """Adam (Kingma and Ba 2014, arXiv:1412.6980, algorithm 1) with a rate for each number.

    Attributes:
        rates: of each number, before the decay.
        betas: decay of the two moments.
    """

    rates: Sequence[float]
    betas: tuple[float, float] = (0.9, 0.99)
    _steps: int = 0
    _moments: list[tuple[float, float]] = field(default_factory=list)

    def step(self, point: Sequence[float], gradient: Sequence[float], decay: float) -> list[float]:
        """Returns the next point; ``decay`` multiplies the rates."""
        self._steps += 1
        first, second = self.betas
        before = self._moments or [(0.0, 0.0)] * len(gradient)
        pairs = zip(before, gradient, strict=True)
        self._moments = [(first * m + (1 - first) * g, second * v + (1 - second) * g * g) for (m, v), g in pairs]
        unbiased = [(m / (1 - first**self._steps), math.sqrt(v / (1 - second**self._steps))) for m, v in self._moments]
        moves = (rate * decay * m / (v + 1e-8) for rate, (m, v) in zip(self.rates, unbiased, strict=True))
        return [x - move for x, move in zip(point, moves, strict=True)]


def beginnings(space: Space, allowance: Allowance) -> tuple[list[Point], tuple[int, ...]]:
    """Returns the points among which windows choose where to begin, YaRN's default first, and these windows.

    The gradient in the ramp's start is noisy: a fast pair's angle at a far position is many turns, and the least change
    of its frequency moves it. From YaRN's start, at the fastest pair, it takes long to find out of that noise, or never
    does. So a few starts are tried, where that takes no more than :data:`TRIED` of the allowance; else there is one.
    """
    begun = [space.start, *space.later_starts]
    windows = allowance.windows[: min(WINDOWS, int(TRIED * allowance.feeds / len(begun)))]
    return (begun, windows) if windows and len(begun) > 1 else ([space.start], ())


def least(allowance: Allowance) -> int:
    """Returns how many windows one step and the checks take."""
    return BATCH + CHECKS * allowance.held_out


def search(space: Space, allowance: Allowance) -> Method:
    """Descends from YaRN's default, or from a later start; averages of the iterates are checked on held-out windows."""
    begun, compared = beginnings(space, allowance)
    besides = len(begun) * len(compared) + CHECKS * allowance.held_out
    steps, adam = max(0, (allowance.feeds - besides) // BATCH), Adam(space.rates)
    checked, losses = [space.start], (yield allowance.check(space.start)).means
    point = best(begun, (yield Ask(tuple(begun), compared)).means) if compared else space.start
    average, windows = point, cycle(allowance.windows)
    checked_after = {round(steps * n / (CHECKS - 1)) - 1 for n in range(1, CHECKS)}  # the last step among them
    for step in range(steps):
        answer = yield Ask((point,), tuple(islice(windows, BATCH)), gradient=True)
        decay = 0.5 * (1 + math.cos(math.pi * step / steps))
        point = space.nearest(adam.step(point, answer.gradients[0], decay))
        average = tuple(a + AVERAGING * (p - a) for a, p in zip(average, point, strict=True))
        if step in checked_after:
            checked.append(average)
            losses += (yield allowance.check(average)).means
            if min(losses[-PATIENCE:]) > min(losses):
                break
    return best(checked, losses)
