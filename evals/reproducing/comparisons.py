"""The stored losses of the arms, and comparisons of any two of them on the same tokens."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from ...errors import DataError
from ..results.result import Result
from ..running.variants import AS_IS, label
from ..statistics.intervals import Estimate, share_difference
from .experiments.retrieval_arms import Answered, read_answers
from .experiments.room import Room

TRUNCATION = "truncation"


@dataclass(frozen=True)
class Point:
    """A model at a moment, under a schedule.

    Attributes:
        arm: the arm that it belongs to.
        step: of a training; None for a measurement.
        schedule: its spec, :data:`TRUNCATION` for the model as it is given only its last tokens.
    """

    arm: str
    step: int | None = None
    schedule: str = AS_IS

    @property
    def label(self) -> str:
        """The schedule's name in the results."""
        return label(self.schedule)


@dataclass(frozen=True)
class PlacedLosses:
    """Losses of a run per document, the first of which belongs to the token at position ``first``."""

    run: Result
    first: int
    values: list[np.ndarray]

    def between(self, start: int, stop: int) -> list[np.ndarray]:
        """Returns those of the tokens at positions [start, stop), fp32.

        Raises:
            DataError: they are not all there.
        """
        parts = [each[start - self.first : stop - self.first] for each in self.values]
        if start < self.first or any(len(part) != stop - start for part in parts):
            raise DataError(f"positions {start:,} to {stop:,} were not measured")
        return parts


class Records:
    """The measurements that the arms of a folder have made so far."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self._load = lru_cache(maxsize=None)(Result.load)
        self._read = lru_cache(maxsize=None)(read_answers)

    def result(self, point: Point) -> Result | None:
        """Returns the run that a point is in; None where it was not measured yet."""
        folder = self._folder(point)
        if not (folder / "results.json").exists():
            return None
        result = self._load(folder)
        there = result.truncation is not None if point.schedule == TRUNCATION else point.label in result.schedules
        return result if there else None

    def _folder(self, point: Point) -> Path:
        if point.step is None:
            return self.room.measured(point.arm)
        return self.room.trained_runs(point.arm) / f"step-{point.step:06d}"

    def losses(self, point: Point, length: int) -> PlacedLosses | None:
        """Returns the losses of all tokens, read in windows of ``length`` positions; None where they are not there."""
        result = self.result(point)
        if result is None:
            return None
        if point.schedule == TRUNCATION:
            assert result.truncation is not None
            return PlacedLosses(result, result.truncation.length, result.truncation.nll)
        if (point.label, length) not in result.read_from:
            return None
        return PlacedLosses(result, 1, result.losses(point.label, length))

    def mean(self, point: Point, length: int, start: int = 1, stop: int | None = None) -> Estimate | None:
        """Returns the loss per token in nats; None where it was not measured."""
        losses = self.losses(point, length)
        return None if losses is None else _estimate(losses.run, losses.between(start, stop or length))

    def repeats(self, point: Point, length: int) -> tuple[float | None, float | None]:
        """Returns the perplexity of far repeats and of the other tokens; None within the trained length."""
        result = self.result(point)
        rows = [] if result is None else result.repeats
        found = (row for row in rows if (row.schedule, row.length) == (point.label, length))
        return next(((row.far_ppl, row.other_ppl) for row in found), (None, None))

    def difference(self, one: Point, other: Point, length: int, start: int = 1, stop: int | None = None
                   ) -> Estimate | None:  # fmt: skip
        """Returns the loss per token of one point minus the other's on the same tokens; None where one is missing.

        Raises:
            DataError: they were measured on other tokens.
        """
        ours, theirs = self.losses(one, length), self.losses(other, length)
        if ours is None or theirs is None:
            return None
        if not ours.run.same_tokens(theirs.run, length):
            raise DataError(f"{one.arm} and {other.arm} were measured on other tokens; reproduce both again")
        parts = (each.between(start, stop or length) for each in (ours, theirs))
        return _estimate(ours.run, [a.astype(np.float64) - b for a, b in zip(*parts, strict=True)])

    def answered(self, point: Point) -> Answered | None:
        """Returns the answers of the run that a point is in; None where it was not asked yet."""
        found = self._read(self.room.measured(point.arm))
        return found if found and any(spec == point.label for spec, _ in found.right) else None

    def answers(self, point: Point, length: int) -> list[bool] | None:
        """Returns which questions about texts of ``length`` positions were answered; None where they were not asked."""
        found = self.answered(point)
        return None if found is None else found.right.get((point.label, length))

    def missed(self, one: Point, other: Point, length: int) -> Estimate | None:
        """Returns the share of questions that one point misses minus the other's; None where one was not asked.

        Raises:
            DataError: they were asked other questions.
        """
        runs = self.answered(one), self.answered(other)
        ours, theirs = self.answers(one, length), self.answers(other, length)
        if runs[0] is None or runs[1] is None or ours is None or theirs is None:
            return None
        if runs[0].prompts != runs[1].prompts:
            raise DataError(f"{one.arm} and {other.arm} were asked other questions; reproduce both again")
        return share_difference([not each for each in ours], [not each for each in theirs])


def _estimate(result: Result, values: list[np.ndarray]) -> Estimate:
    return result.estimate([float(each.sum(dtype=np.float64)) for each in values], [len(each) for each in values])
