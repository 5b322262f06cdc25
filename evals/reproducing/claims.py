"""A claim, as differences of losses on the same tokens or of answers to the same questions, and what they say of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..metrics.cells import around, signed
from ..statistics.intervals import Estimate
from .comparisons import Point, Records
from .rows import FAILS, HOLDS, NOT_RUN, UNDECIDED, ClaimRow


@dataclass(frozen=True)
class Contrast:
    """That one point's loss exceeds another's by no more than so many nats, on the same tokens.

    Attributes:
        said: the two in words, as ``YaRN, 100 steps, minus PI, 400 steps``.
        one, other: the points.
        length: positions of the windows; the tokens are those at positions [``start``, ``stop``), by default all.
        most: the nats; 0 for "is lower".
    """

    said: str
    one: Point
    other: Point
    length: int
    start: int = 1
    stop: int | None = None
    most: float = 0.0

    def estimate(self, records: Records) -> Estimate | None:
        """Returns the difference and its interval; None where an arm is missing."""
        return records.difference(self.one, self.other, self.length, self.start, self.stop)


@dataclass(frozen=True)
class Missed:
    """That one point misses no larger share of the questions than another, of the same questions.

    Attributes:
        said: the two in words.
        one, other: the points.
        length: positions of the texts.
        most: the share by which it may be larger; 0 for "is lower".
    """

    said: str
    one: Point
    other: Point
    length: int
    most: float = 0.0

    def estimate(self, records: Records) -> Estimate | None:
        """Returns the difference and its interval; None where an arm is missing."""
        return records.missed(self.one, self.other, self.length)


@dataclass(frozen=True)
class Claim:
    """A sentence of a paper, and the differences that all must come out for it to hold here.

    Attributes:
        name: of one word or two.
        text: the claim, as it is put here.
        source: the paper and the section.
        parts: the differences.
    """

    name: str
    text: str
    source: str
    parts: Sequence[Contrast | Missed]


def judge(claim: Claim, records: Records) -> ClaimRow:
    """Compares, and returns what comes out."""
    found = [(part, part.estimate(records)) for part in claim.parts]
    figures = "; ".join(_figure(part, estimate) for part, estimate in found if estimate is not None)
    numbers = [[each.mean, each.low, each.high, part.most] for part, each in found if each is not None]
    verdicts = [verdict(estimate, part.most) for part, estimate in found]
    return ClaimRow(claim.name, claim.text, claim.source, together(verdicts), figures, numbers)


def verdict(estimate: Estimate | None, most: float = 0.0) -> str:
    """Returns whether a difference lies below ``most``: by its whole interval, or not decided."""
    if estimate is None:
        return NOT_RUN
    if estimate.low is None or estimate.high is None:
        return UNDECIDED
    return HOLDS if estimate.high < most else FAILS if estimate.low > most else UNDECIDED


def together(verdicts: Sequence[str]) -> str:
    """Returns the verdict on all: one that fails is enough to fail, and one that is missing leaves the rest open."""
    return next((each for each in (FAILS, NOT_RUN, UNDECIDED) if each in verdicts), HOLDS)


def _figure(part: Contrast | Missed, estimate: Estimate) -> str:
    value = f"{signed(estimate.mean)}{around(estimate.mean, estimate.low, estimate.high, sign='+')}"
    bound = f", where up to {part.most:.3g} is allowed" if part.most else ""
    return f"{part.said}: {value}{bound}"


def share(percent: float) -> float:
    """Returns the nats by which a perplexity grows by so many percent."""
    return math.log1p(percent / 100)
