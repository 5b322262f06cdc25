"""The stored answers of a retrieval run, and the rows of accuracy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..checking import Count, Length, Share
from ..metrics.stored import Measured


def chance(digits: int) -> float:
    """Returns the NLL in nats of any one of the numbers of so many digits; the first is no 0."""
    return math.log(9) + (digits - 1) * math.log(10)


@dataclass(frozen=True)
class Answer:
    """The answer to one question under one schedule.

    Attributes:
        schedule: the schedule's label.
        length: positions of the prompt, BOS and answer included.
        depth: the requested depth.
        actual_depth: the real place of the key, as a share of the filler.
        trial, prompt: the trial, and the prompt among those of this length; questions of one prompt share its text.
        position: how many positions come before the key.
        answer: the digits.
        tokens: how many tokens the answer has.
        correct: whether greedy decoding would write it.
        nll: the NLL of the whole answer in nats.
    """

    schedule: str
    length: int
    depth: float
    actual_depth: float
    trial: int
    prompt: int
    position: int
    answer: str
    tokens: int
    correct: bool
    nll: float


@dataclass(frozen=True)
class AccuracyRow:
    """The accuracy and answer NLL of one schedule at one length and depth, or over all depths (``depth`` None).

    ``accuracy_low`` and ``accuracy_high`` are Wilson's 95% interval; the NLL's is Student's t over prompts, None with
    fewer than five.
    """

    schedule: str
    table_sha256: str
    length: Length
    depth: Share | None
    answers: Count
    correct: Count
    accuracy: Share
    accuracy_low: Share
    accuracy_high: Share
    answer_nll: float
    answer_nll_low: float | None
    answer_nll_high: float | None


@dataclass(repr=False)
class StoredAnswers(Measured):
    """The answers of a finished (or interrupted) run.

    Attributes:
        cost: per schedule and length, how many contexts went through the model; 0 if another had the same tables.
        answers: schedules in the order they ran, lengths ascending.
        tables: the hash of the live rotary tables, by (schedule, length).
        baseline: the label of the schedule that the others are compared with.
        threshold: the share of the best accuracy at the shortest length that counts as good enough.
    """

    cost: list[dict[str, Any]]
    answers: list[Answer]
    tables: dict[tuple[str, int], str]
    baseline: str
    threshold: float

    @property
    def schedules(self) -> list[str]:
        """The labels, in the order they ran."""
        return list(dict.fromkeys(schedule for schedule, _ in self.tables))

    @property
    def lengths(self) -> list[int]:
        """The lengths, ascending."""
        return sorted({length for _, length in self.tables})

    @property
    def depths(self) -> list[float]:
        """The depths, ascending."""
        return sorted({answer.depth for answer in self.answers})

    @property
    def trained_length(self) -> int | None:
        """The model's trained context, if known; plots mark it."""
        return self.model.get("trained_length")

    @property
    def chance(self) -> float:
        """The NLL in nats of a guess: every number of so many digits is as likely as any other."""
        return chance(int(self.protocol["digits"]))

    @cached_property
    def by_length(self) -> dict[tuple[str, int], list[Answer]]:
        """The answers of each schedule and length."""
        groups: dict[tuple[str, int], list[Answer]] = {key: [] for key in self.tables}
        for answer in self.answers:
            groups[answer.schedule, answer.length].append(answer)
        return groups
