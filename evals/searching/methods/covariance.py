"""CMA-ES (Hansen 2016, arXiv:1604.00772) in the numbers of a schedule, by the package ``cma``."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Protocol

from ..families.family import Point
from ..families.space import Space
from .asking import WINDOWS, Allowance, Ask, Method, best, candidates

SPREAD = 10.0
"""The standard deviation of the first candidates, in steps of gradient descent."""


class Strategy(Protocol):
    """The part that is used of ``cma.CMAEvolutionStrategy``."""

    def ask(self) -> list[Sequence[float]]:
        """Returns the candidates of a generation."""
        ...

    def tell(self, candidates: list[Sequence[float]], losses: list[float]) -> None:
        """Learns from them."""
        ...


def search(space: Space, allowance: Allowance) -> Method:
    """Adapts a distribution of candidates on the first windows; the best of them is checked on those held out.

    Every number is counted in steps of gradient descent, so that one deviation suits all. Candidates out of bounds are
    moved to the nearest that is not.
    """
    left, windows, start = candidates(allowance), allowance.windows[:WINDOWS], space.start
    cma = import_module("cma")  # :class:`..options.SearchOptions` has asked whether it is installed
    drawing = {"seed": allowance.seed + 1, "verbose": -9}  # for 0 it draws a seed itself
    strategy: Strategy = cma.CMAEvolutionStrategy([0.0] * len(start), SPREAD, drawing)
    before = (yield allowance.check(start)).means
    points, losses = [start], (yield Ask((start,), windows)).means
    left -= 1
    while left:
        drawn = strategy.ask()
        asked = [_at(space, start, each) for each in drawn[:left]]
        found = (yield Ask(tuple(asked), windows)).means
        points, losses, left = [*points, *asked], [*losses, *found], left - len(asked)
        if len(asked) == len(drawn):
            strategy.tell(drawn, found)
    point = best(points, losses)
    return best([start, point], before + (yield allowance.check(point)).means)


def _at(space: Space, start: Point, moves: Sequence[float]) -> Point:
    return space.nearest([at + rate * float(move) for at, rate, move in zip(start, space.rates, moves, strict=True)])
