"""Gradient descent in the numbers of a schedule: Adam with a rate that decays, and averaged iterates."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, repeat

from .asking import Allowance, Ask, Method, best
from .space import Space

BATCH = 2
"""Windows of a step."""

CHECKS = 6
"""How often the held-out windows are fed, the start included."""

AVERAGING = 0.1
"""How much of the average each iterate replaces."""

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


def steps_within(allowance: Allowance) -> int:
    """Returns how many steps an allowance has room for, besides its checks."""
    return max(0, (allowance.feeds - CHECKS * allowance.held_out) // BATCH)


def least(allowance: Allowance) -> int:
    """Returns how many windows one step and the checks take."""
    return BATCH + CHECKS * allowance.held_out


def search(space: Space, allowance: Allowance) -> Method:
    """Descends from YaRN's default; the average of the iterates is checked on the held-out windows."""
    steps, adam = steps_within(allowance), Adam(space.rates)
    point = average = space.start
    batches = _batches(allowance.windows)
    checked, losses = [point], (yield allowance.check(point)).means
    for step in range(steps):
        answer = yield Ask((point,), next(batches), gradient=True)
        decay = 0.5 * (1 + math.cos(math.pi * step / steps))
        point = space.nearest(adam.step(point, answer.gradients[0], decay))
        average = tuple(a + AVERAGING * (p - a) for a, p in zip(average, point, strict=True))
        if step in _check_steps(steps):
            checked.append(average)
            losses += (yield allowance.check(average)).means
            if min(losses[-PATIENCE:]) > min(losses):
                break
    return best(checked, losses)


def _batches(windows: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yields the windows in order, again and again, so many at a time."""
    forever = chain.from_iterable(repeat(windows))
    while True:
        yield tuple(islice(forever, BATCH))


def _check_steps(steps: int) -> set[int]:
    """Returns the steps after which there is a check: evenly spaced, the last among them."""
    return {round(steps * n / (CHECKS - 1)) - 1 for n in range(1, CHECKS)}
