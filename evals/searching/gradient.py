"""Gradient descent in the numbers of a schedule: Adam with a rate that decays, and averaged iterates.

The search is a generator: it yields a :class:`Query`, is sent the :class:`QueryLosses`, and returns the point that did
best. The same answers make it ask the same again, so a search that was stopped continues from the answers in its
:class:`Journal`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Generator, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import cycle, islice

from ...errors import RunError
from ..store import STEP, Facts, Store, key_of
from .search_space import Point, Space


@dataclass(frozen=True)
class Query:
    """A question: the losses of points on windows.

    Attributes:
        points: the numbers of each.
        windows: the windows, by number.
        gradient: whether the gradient is wanted, too.
        held_out: whether the windows are held out; else they are of the training text.
        positions: how much of each window is fed at once, BOS included; None for all of it.
        stride: all of each window is fed, in windows of so many positions that are this far apart: truncation.
    """

    points: tuple[Point, ...]
    windows: tuple[int, ...]
    gradient: bool = False
    held_out: bool = False
    positions: int | None = None
    stride: int | None = None

    @property
    def forwards(self) -> int:
        """How many windows are fed."""
        return len(self.points) * len(self.windows)


@dataclass(frozen=True)
class QueryLosses:
    """The losses of a query.

    Attributes:
        losses: per point and window, the weighted NLL in nats.
        gradients: per point, the gradient of its mean loss; empty where it was not asked for.
        by_length: per point and window, the NLL in nats of all tokens up to each length; of held-out windows alone.
    """

    losses: tuple[tuple[float, ...], ...]
    gradients: tuple[Point, ...] = ()
    by_length: tuple[tuple[tuple[float, ...], ...], ...] = ()

    @property
    def means(self) -> list[float]:
        """The mean loss of each point."""
        return [sum(each) / len(each) for each in self.losses]


@dataclass(frozen=True)
class Check:
    """A point on the windows that choose.

    Attributes:
        spent: tokens fed before, the check included.
        point: its numbers.
        loss: its weighted NLL in nats, the mean over the held-out windows.
    """

    spent: int
    point: Point
    loss: float


@dataclass(frozen=True)
class TokenBudget:
    """The tokens and windows that a method may use.

    Attributes:
        windows: of the training text, by number, in the order of the seed.
        held_out: how many of the windows that are held out choose; others judge.
        feeds: how many windows may be fed in all, those held out included.
    """

    windows: tuple[int, ...]
    held_out: int
    feeds: int

    def check(self, *points: Point) -> Query:
        """Returns the query of points on the windows that choose."""
        return Query(points, tuple(range(self.held_out)), held_out=True)


Method = Generator[Query, QueryLosses, Point]
"""A search; it returns the point that did best on the held-out windows."""


WINDOWS = 4
"""The windows on which points are compared without a gradient."""


def best(points: Sequence[Point], losses: Sequence[float]) -> Point:
    """Returns the point with the least loss; of equals the first."""
    return points[min(range(len(points)), key=lambda number: losses[number])]


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


def beginnings(space: Space, allowance: TokenBudget) -> tuple[list[Point], tuple[int, ...]]:
    """Returns the points among which windows choose where to begin, YaRN's default first, and these windows.

    The gradient in the ramp's start is noisy: a fast pair's angle at a far position is many turns, and the least change
    of its frequency moves it. From YaRN's start, at the fastest pair, it takes long to find out of that noise, or never
    does. So a few starts are tried, where that takes no more than :data:`TRIED` of the allowance; else there is one.
    """
    begun = [space.start, *space.later_starts]
    windows = allowance.windows[: min(WINDOWS, int(TRIED * allowance.feeds / len(begun)))]
    return (begun, windows) if windows and len(begun) > 1 else ([space.start], ())


def least(allowance: TokenBudget) -> int:
    """Returns how many windows one step and the checks take."""
    return BATCH + CHECKS * allowance.held_out


def search(space: Space, allowance: TokenBudget) -> Method:
    """Descends from YaRN's default, or from a later start; averages of the iterates are checked on held-out windows."""
    begun, compared = beginnings(space, allowance)
    besides = len(begun) * len(compared) + CHECKS * allowance.held_out
    steps, adam = max(0, (allowance.feeds - besides) // BATCH), Adam(space.rates)
    checked, losses = [space.start], (yield allowance.check(space.start)).means
    point = best(begun, (yield Query(tuple(begun), compared)).means) if compared else space.start
    average, windows = point, cycle(allowance.windows)
    checked_after = {round(steps * n / (CHECKS - 1)) - 1 for n in range(1, CHECKS)}  # the last step among them
    for step in range(steps):
        answer = yield Query((point,), tuple(islice(windows, BATCH)), gradient=True)
        decay = 0.5 * (1 + math.cos(math.pi * step / steps))
        point = space.nearest(adam.step(point, answer.gradients[0], decay))
        average = tuple(a + AVERAGING * (p - a) for a, p in zip(average, point, strict=True))
        if step in checked_after:
            checked.append(average)
            losses += (yield allowance.check(average)).means
            if min(losses[-PATIENCE:]) > min(losses):
                break
    return best(checked, losses)


class Journal:
    """The answers in order, as records of a store.

    Args:
        store: those of an earlier call are read from it, and new ones kept in it.
        facts: all that the answers depend on.

    Attributes:
        kept: hashes of questions, and the answers.
        left: those of an earlier call that :meth:`replayed` has not given yet.
    """

    def __init__(self, store: Store, facts: Facts) -> None:
        self.store, self._key = store, key_of(facts)
        records = ((number, content) for number, content, dtype, _ in store.records(self._key) if dtype == STEP)
        # What follows a damaged answer is asked again.
        pairs = [json.loads(content) for place, (number, content) in enumerate(records) if number == place]
        self.kept = [
            (asked, QueryLosses(**{name: _tuples(value) for name, value in found.items()})) for asked, found in pairs
        ]
        self.left: Iterator[tuple[str, QueryLosses]] = iter(())

    def replayed(self, query: Query) -> QueryLosses | None:
        """Returns the next answer of an earlier call, or None.

        Raises:
            RunError: it answers another question.
        """
        asked, answer = next(self.left, ("", None))
        if answer is not None and asked != digest(query):
            raise RunError("the kept steps are not those of this search; search afresh", "fresh")
        return answer

    def add(self, query: Query, answer: QueryLosses) -> None:
        """Keeps an answer."""
        self.store.put(self._key, len(self.kept), json.dumps([digest(query), asdict(answer)]).encode(), STEP)
        self.kept.append((digest(query), answer))


def digest(query: Query) -> str:
    """Returns a hash of a question."""
    return hashlib.sha256(json.dumps(asdict(query)).encode()).hexdigest()[:16]


def _tuples(value: object) -> tuple:
    return tuple(_tuples(each) for each in value) if isinstance(value, list) else value  # type: ignore[return-value]
