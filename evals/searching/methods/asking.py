"""Questions of a method of search, and the answers to them.

A method is a generator: it yields an :class:`Ask`, is sent the :class:`Reply`, and returns an :class:`Outcome`. It
draws its random numbers from its seed and does nothing else, so the same answers make it ask the same again: a search
that was stopped is continued by giving it the answers that were kept.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

from ..families.family import Point


@dataclass(frozen=True)
class Ask:
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
class Reply:
    """The answer.

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
class Allowance:
    """The tokens and windows that a method may use.

    Attributes:
        windows: of the training text, by number, in the order of the seed.
        held_out: how many of the windows that are held out choose; others judge.
        feeds: how many windows may be fed in all, those held out included.
        seed: of everything that is random.
    """

    windows: tuple[int, ...]
    held_out: int
    feeds: int
    seed: int

    def check(self, *points: Point) -> Ask:
        """Returns the question how points do on the windows that choose."""
        return Ask(points, tuple(range(self.held_out)), held_out=True)


Method = Generator[Ask, Reply, Point]
"""A search; it returns the point that did best on the held-out windows."""


WINDOWS = 4
"""The windows on which points are compared without a gradient."""


def best(points: Sequence[Point], losses: Sequence[float]) -> Point:
    """Returns the point with the least loss; of equals the first."""
    return points[min(range(len(points)), key=lambda number: losses[number])]
