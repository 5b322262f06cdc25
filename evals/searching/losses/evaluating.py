"""Answers the questions of a search with the model, shared out over processes.

Every window of every point is a job of its own. Whoever does a job, its numbers are the same, and they are added up in
the order of the jobs; so the answers do not depend on how many processes there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import torch

from ....errors import RunError
from ...parallel.processes import Group
from ..families.family import Point
from ..families.space import Space
from ..methods.asking import Ask, Reply
from .learner import Learner, Weighted, gradient
from .live import LiveTables

Job = tuple[float, Point, tuple[float, ...]]
"""Of one window under one point: its loss, its gradient, and the NLL up to each length."""


@dataclass(frozen=True)
class Texts:
    """What is fed.

    Attributes:
        learned, held_out: windows, int64 [windows, positions].
        lengths: where the NLL of held-out windows is noted, ascending.
    """

    learned: torch.Tensor
    held_out: torch.Tensor
    lengths: tuple[int, ...]


class Evaluator:
    """Computes answers.

    Args:
        group: the processes that share the windows.
    """

    def __init__(
        self, learner: Learner, live: LiveTables, space: Space, texts: Texts, weighted: Weighted, group: Group
    ) -> None:
        self._learner, self._live, self._space, self._group = learner, live, space, group
        self._texts, self._weighted = texts, weighted

    def answer(self, ask: Ask) -> Reply:
        """Returns the answer, in every process.

        Raises:
            RunError: a loss that is not finite.
        """
        jobs = list(product(ask.points, ask.windows))
        world = self._group.world
        own = {n: self._job(ask, *jobs[n]) for n in range(world.rank, len(jobs), world.size)}
        found: dict[int, Job] = {}
        for each in self._group.from_all(own):
            found |= each
        return _answered(ask, [found[n] for n in range(len(jobs))])

    def _job(self, ask: Ask, point: Point, window: int) -> Job:
        ids = (self._texts.held_out if ask.held_out else self._texts.learned)[window, : ask.positions]
        slope: Sequence[float] = ()
        if ask.gradient:
            nll, slope = gradient(self._learner, self._live, self._space, point, ids, self._weighted)
        else:
            self._write(point)
            nll = self._learner.nll_of(ids)
        loss = float((nll.double() * self._weighted.of(len(nll))).sum())
        if not loss < float("inf"):
            raise RunError(
                f"the model's logits are NaN or infinite under {self._named(point)}; try dtype='float32'", "dtype"
            )
        lengths = [length for length in self._texts.lengths if ask.held_out and length <= len(ids)]
        return loss, tuple(slope), tuple(float(nll[: length - 1].double().mean()) for length in lengths)

    def _write(self, point: Point) -> None:
        """Makes the tables of a point live; a point without numbers leaves those that are."""
        if point:
            with torch.no_grad():
                self._live.write(self._space.tables(torch.tensor(point, dtype=torch.float64)))

    def _named(self, point: Point) -> str:
        if not point:
            return "its own tables"
        return ", ".join(f"{name} {value:.4g}" for name, value in zip(self._space.names, point, strict=True))


def _answered(ask: Ask, jobs: Sequence[Job]) -> Reply:
    """Puts the jobs together, point by point."""
    size = len(ask.windows)
    rows = [jobs[start : start + size] for start in range(0, len(jobs), size)]
    return Reply(
        losses=tuple(tuple(loss for loss, _, _ in row) for row in rows),
        gradients=tuple(_mean([slope for _, slope, _ in row]) for row in rows) if ask.gradient else (),
        by_length=tuple(tuple(lengths for _, _, lengths in row) for row in rows) if ask.held_out else (),
    )


def _mean(slopes: Sequence[Point]) -> Point:
    return tuple(sum(each) / len(slopes) for each in zip(*slopes, strict=True))
