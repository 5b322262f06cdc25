"""LongRoPE's evolutionary search: a divisor for every pair, which never falls from a pair to a slower one.

Ding et al. 2024, arXiv:2402.13753, section 3.3, as its authors published it (``evolution/algorithms/dim_mono.py``): the
population begins at YaRN and its mutations; each round keeps the best half as parents, and adds mutations of one and
crossovers of two. What a budget has room for is much less than the 1,344 candidates of the paper, so its sizes are
scaled down together, as its own ``evo_scale`` does. The attention scale stays YaRN's.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from itertools import pairwise

from ..families.family import EveryPair, Point
from ..families.space import Space
from .asking import WINDOWS, Allowance, Ask, Method, best, candidates

CHANCE = 0.3
"""How likely it is that a pair is changed."""

STEP = 0.01
"""Between two divisors that a pair may have."""

TRIES = 20
"""Crossovers that are tried before a mutation takes their place."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of a population; LongRoPE's own, or a share of them."""

    population: int = 64
    parents: int = 32
    mutations: int = 16
    crossovers: int = 16

    @classmethod
    def within(cls, budget: int) -> Sizes:
        """Returns the sizes for so many candidates: 1,344 or more have room for LongRoPE's own, fewer for a share."""
        usual = cls()
        share = min(1.0, max(1 / 8, budget / (usual.population + 40 * (usual.mutations + usual.crossovers))))
        return cls(*(round(share * size) for size in astuple(usual)))


def search(space: Space, allowance: Allowance) -> Method:
    """Evolves divisors on the first windows; the best of them is checked on those held out."""
    breeder = Breeder(space, random.Random(f"ropescale evolution {allowance.seed}"))
    left, windows = candidates(allowance), allowance.windows[:WINDOWS]
    sizes, start = Sizes.within(left), space.start
    before = (yield allowance.check(start)).means
    population = breeder.founders(start, min(sizes.population, left))
    losses = (yield Ask(tuple(population), windows)).means
    left -= len(population)
    while left:
        ranked = sorted(zip(losses, population, strict=True))[: sizes.parents]
        parents = [point for _, point in ranked]
        children = breeder.children(parents, sizes)[:left]
        losses = [loss for loss, _ in ranked] + (yield Ask(tuple(children), windows)).means
        population, left = parents + children, left - len(children)
    found = best(population, losses)
    return best([start, found], before + (yield allowance.check(found)).means)


class Breeder:
    """Makes candidates that were never there before.

    Args:
        space: its numbers are the logarithms of every pair's divisor.
    """

    def __init__(self, space: Space, rng: random.Random) -> None:
        self._space, self._rng = space, rng
        self._known: set[Point] = set()

    def founders(self, start: Point, count: int) -> list[Point]:
        """Returns the starting point and its mutations."""
        self._known.add(start)
        return [start, *(self._mutated(start) for _ in range(count - 1))]

    def children(self, parents: Sequence[Point], sizes: Sizes) -> list[Point]:
        """Returns mutations of single parents, and crossovers of two."""
        mutations = [self._mutated(self._rng.choice(parents)) for _ in range(sizes.mutations)]
        pairs = [sorted(self._rng.sample(range(len(parents)), 2)) for _ in range(sizes.crossovers)]
        return mutations + [self._crossed(parents[first], parents[second]) for first, second in pairs]

    def _mutated(self, parent: Point) -> Point:
        child = parent
        while child in self._known:
            child = self._changed(child)
        self._known.add(child)
        return child

    def _changed(self, point: Point) -> Point:
        logs: list[float] = []
        for each, part in self._space.parts(point):
            assert isinstance(each, EveryPair)
            logs += map(math.log, self._moved([math.exp(log) for log in part], 1 + each.factor))
        return tuple(logs)

    def _moved(self, divisors: Sequence[float], most: float) -> list[float]:
        """Draws some divisors anew, between those of their neighbours."""
        moved = [1.0, *divisors, most]
        for pair in range(1, len(moved) - 1):
            if self._rng.random() < CHANCE:
                low, high = moved[pair - 1], moved[pair + 1]
                moved[pair] = low + STEP * self._rng.randint(0, max(0, math.floor((high - low) / STEP)))
        return moved[1:-1]

    def _crossed(self, one: Point, other: Point) -> Point:
        """Takes some divisors of the other, as long as they do not fall; else returns a mutation of the first."""
        child = list(one)
        for _ in range(TRIES):
            for number in range(len(child)):
                if self._rng.random() < CHANCE / 2:
                    child[number] = other[number]
            crossed = tuple(child)
            if crossed not in self._known and self._never_falls(crossed):
                self._known.add(crossed)
                return crossed
        return self._mutated(one)

    def _never_falls(self, point: Point) -> bool:
        """Whether no pair is divided by less than a faster one."""
        parts = (part for _, part in self._space.parts(point))
        return all(first <= second for part in parts for first, second in pairwise(part))
