"""Gradient descent on a schedule's parameters with Adam, a decaying learning rate, and averaged iterates."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count, cycle, islice, takewhile

import torch
from pydantic import FiniteFloat, TypeAdapter

from ..parallel.processes import Group
from ..progress import Progress
from ..store import Facts, Store, key_of
from .learner import Evaluator
from .metrics import Trial
from .search_space import Point, Space
from .windows import BATCH, CHECKS, Budget, WeightedWindow

Numbers = Sequence[list[float]]
"""The losses of a step, and its gradient, which is empty if only losses are computed."""

_STORED = TypeAdapter(list[list[FiniteFloat]])

AVERAGING = 0.1
"""The weight of each iterate in the average."""

PATIENCE = 3
"""The search ends after this many checks in a row without a better loss."""

BETAS = (0.9, 0.99)
"""The decay rates of Adam's moments (Kingma and Ba 2014, arXiv:1412.6980)."""


def search(space: Space, budget: Budget, windows: Sequence[WeightedWindow], trials: Trials) -> Trial:
    """Runs gradient descent from YaRN's default or a known good ramp, and returns the check with the lowest loss.

    The gradient with respect to the ramp's start is noisy: at a far position a fast pair has made many turns, so a tiny
    change of its frequency changes its angle a lot. In YaRN's default the ramp starts at a fast pair, where the noise
    slows or stops the descent. So a few starts are compared first, if the budget allows.

    Args:
        windows: the windows to learn from, in the order in which they are fed.
        trials: computes the losses.
    """
    steps = budget.steps
    checked_after = {round(steps * n / (CHECKS - 1)) - 1 for n in range(1, CHECKS)}  # the last step among them
    point = space.start
    checks = [trials.check(point)]
    if budget.compared:
        point = least(trials.compare(space.starts, windows[: budget.compared])).point
    average = point
    feed = cycle(windows)
    numbers = torch.tensor(point, dtype=torch.float64)
    rates = torch.tensor(space.rates, dtype=torch.float64)
    adam = torch.optim.Adam([numbers], lr=1.0, betas=BETAS)
    for step in range(steps):
        before = numbers.clone()
        numbers.grad = trials.gradient(point, list(islice(feed, BATCH)))
        adam.step()
        decay = 0.5 * (1 + math.cos(math.pi * step / steps))
        point = space.nearest(torch.lerp(before, numbers, rates * decay).tolist())
        numbers.copy_(torch.tensor(point, dtype=torch.float64))
        average = tuple(a + AVERAGING * (p - a) for a, p in zip(average, point))
        if step in checked_after:
            checks.append(trials.check(average))
            if least(checks[-PATIENCE:]).loss > least(checks).loss:
                break
    return least(checks)


def least(trials: Sequence[Trial]) -> Trial:
    """Returns the trial with the lowest loss, the first one of several."""
    return min(trials, key=lambda trial: trial.loss)


class Steps:
    """The finished steps of a run, in order. Earlier steps are read from a store, and new steps are written to it.

    Args:
        store: the store of the steps; only the store of the leader is used.
        facts: the facts that determine the steps.

    Attributes:
        kept: all finished steps, as JSON.
    """

    def __init__(self, store: Store, facts: Facts, group: Group) -> None:
        self._store = store if group.world.leads else Store()
        self._key = key_of(facts)
        self._taken = 0
        records = dict(self._store.records(self._key))
        # All steps after a damaged step are computed again.
        whole = [records[number] for number in takewhile(records.__contains__, count())]
        self.kept: list[bytes] = group.from_leader(whole)

    def take(self, compute: Callable[[], Numbers], sizes: list[int]) -> tuple[Numbers, bool]:
        """Returns the numbers of the next step, and whether they were computed now.

        Args:
            sizes: the number of losses and of components of the gradient; a stored step of other sizes is damaged.
        """
        number = self._taken
        self._taken += 1
        with suppress(IndexError, ValueError):
            stored = _STORED.validate_json(self.kept[number])
            if list(map(len, stored)) == sizes:
                return stored, False
        del self.kept[number:]
        found = compute()
        self.kept.append(json.dumps(found).encode())
        self._store.put(self._key, number, self.kept[number])
        return found, True


class Trials:
    """Evaluates points, and records their losses.

    Args:
        choosing: the selection windows, which every check uses.

    Attributes:
        steps: the trials on windows to learn from.
        checks: the trials on the selection windows.
        spent: the total number of tokens fed.
    """

    def __init__(
        self, evaluator: Evaluator, choosing: Sequence[WeightedWindow], kept: Steps, progress: Progress
    ) -> None:
        self._evaluator = evaluator
        self._choosing = choosing
        self._kept = kept
        self._progress = progress
        self.steps: list[Trial] = []
        self.checks: list[Trial] = []
        self.spent = 0

    def compare(self, points: Sequence[Point], windows: Sequence[WeightedWindow]) -> list[Trial]:
        """Tries points on windows to learn from."""
        self._try(points, windows, self.steps)
        return self.steps[-len(points) :]

    def check(self, point: Point) -> Trial:
        """Tries a point on the selection windows."""
        self._try([point], self._choosing, self.checks)
        return self.checks[-1]

    def gradient(self, point: Point, windows: Sequence[WeightedWindow]) -> torch.Tensor:
        """Tries a point on windows to learn from, and returns the gradient of its loss, float64 [numbers]."""
        slope = self._try([point], windows, self.steps, with_gradient=True)
        return torch.tensor(slope, dtype=torch.float64)

    def _try(
        self,
        points: Sequence[Point],
        windows: Sequence[WeightedWindow],
        trials: list[Trial],
        with_gradient: bool = False,
    ) -> list[float]:
        """Adds a trial of each point, and returns the gradient, for a lone point only."""

        def compute() -> Numbers:
            if not with_gradient:
                return self._evaluator.means(points, windows), []
            loss, slope = self._evaluator.gradient(points[0], windows)
            return [loss], slope

        (losses, slope), is_new = self._kept.take(compute, [len(points), len(points[0]) if with_gradient else 0])
        tokens = len(points) * sum(len(window.ids) for window in windows)
        self.spent += tokens
        trials += [Trial(self.spent, point, loss) for point, loss in zip(points, losses, strict=True)]
        if is_new:
            first = self.checks[0].loss
            best = least(self.checks).loss
            self._progress.say(f"held-out loss {first:.4f}, best {best:.4f}")
            self._progress.add(tokens)
        return slope
