"""Answers the questions of a search with the model, shared out over processes.

Every piece of every window of every point is a job of its own. Whoever does a job, its numbers are the same, and they
are added up in the order of the jobs; so the answers do not depend on how many processes there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import torch

from ...parallel.processes import Group
from ...scoring.scorer import not_finite
from ..families.family import Point
from ..families.space import Space
from ..methods.asking import Ask, Reply
from .learner import Learner, gradient
from .table_gradients import LiveTables
from .windows import Piece, Texts

Job = tuple[float, Point, tuple[float, ...]]
"""Of one piece of a window, or of a window, under one point: its loss, its gradient, and the NLL at each length."""


class Evaluator:
    """Computes answers.

    Args:
        group: the processes that share the windows.
    """

    def __init__(self, learner: Learner, live: LiveTables, space: Space, texts: Texts, group: Group) -> None:
        self._learner, self._live, self._space, self._group = learner, live, space, group
        self._texts = texts

    def answer(self, ask: Ask) -> Reply:
        """Returns the answer, in every process.

        Raises:
            RunError: a loss that is not finite.
        """
        known = self._texts.held_out if ask.held_out else self._texts.learned
        windows = [known[number].pieces(ask.positions, ask.stride) for number in ask.windows]
        jobs = list(product(ask.points, [piece for pieces in windows for piece in pieces]))
        world = self._group.world
        own = {n: self._job(ask, *jobs[n]) for n in range(world.rank, len(jobs), world.size)}
        found: dict[int, Job] = {}
        for each in self._group.from_all(own):
            found |= each
        return _answered(ask, windows, [found[n] for n in range(len(jobs))])

    def _job(self, ask: Ask, point: Point, piece: Piece) -> Job:
        slope: Sequence[float] = ()
        if ask.gradient:
            nll, slope = gradient(self._learner, self._live, self._space, point, piece.ids, piece.weighing)
        else:
            self._write(point)
            nll = self._learner.nll_of(piece.ids)
        loss = piece.loss(nll)
        if not loss < float("inf"):
            raise not_finite(self._learner.model, f"under {self._named(point)}", "a smaller target_length")
        return loss, tuple(slope), piece.noted(nll) if ask.held_out else ()

    def _write(self, point: Point) -> None:
        """Makes the tables of a point live; a point without numbers leaves those that are."""
        if point:
            with torch.no_grad():
                self._live.write(self._space.tables(torch.tensor(point, dtype=torch.float64)))

    def _named(self, point: Point) -> str:
        if not point:
            return "its own tables"
        return ", ".join(f"{name} {value:.4g}" for name, value in zip(self._space.names, point, strict=True))


def _answered(ask: Ask, windows: Sequence[Sequence[Piece]], jobs: Sequence[Job]) -> Reply:
    """Puts the jobs together, point by point and window by window."""
    done = iter(jobs)
    rows = [[_joined(pieces, [next(done) for _ in pieces]) for pieces in windows] for _ in ask.points]
    return Reply(
        losses=tuple(tuple(loss for loss, _, _ in row) for row in rows),
        gradients=tuple(_mean([slope for _, slope, _ in row]) for row in rows) if ask.gradient else (),
        by_length=tuple(tuple(lengths for _, _, lengths in row) for row in rows) if ask.held_out else (),
    )


def _joined(pieces: Sequence[Piece], jobs: Sequence[Job]) -> Job:
    """Puts the pieces of a window together."""
    if len(jobs) == 1:
        return jobs[0]
    shares = [piece.share for piece in pieces]
    loss = sum(share * each for share, (each, _, _) in zip(shares, jobs, strict=True))
    slopes = [[share * each for each in slope] for share, (_, slope, _) in zip(shares, jobs, strict=True)]
    return loss, tuple(map(sum, zip(*slopes, strict=True))), tuple(n for _, _, noted in jobs for n in noted)


def _mean(slopes: Sequence[Point]) -> Point:
    return tuple(sum(each) / len(slopes) for each in zip(*slopes, strict=True))
