"""The answers of a retrieval run, and the figure that everything else is computed from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..results.checking import Count, Length, Share
from ..results.stored import Measured


@dataclass(frozen=True)
class Answer:
    """One question, asked under one schedule.

    Attributes:
        schedule: its label.
        length: positions of the prompt, BOS and answer included.
        depth: as asked for.
        actual_depth: where the key really stood, as a share of the filler.
        trial, prompt: which prompt of this length; questions of one prompt share its text.
        position: how many positions come before the key.
        answer: the digits.
        tokens: how many tokens the answer has.
        correct: whether greedy decoding gives it.
        nll: of the whole answer, in nats.
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
    """Accuracy and answer NLL of one schedule at one length and depth, or over all depths (``depth`` None).

    ``accuracy_low`` and ``accuracy_high`` are Wilson's 95% interval; the NLL's is Student's t over prompts, None with
    fewer than two.
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


@dataclass
class Asked(Measured):
    """The answers of a finished (or interrupted) run.

    Attributes:
        cost: per schedule and length, how many contexts went through the model; 0 where another had the same tables.
        answers: schedules in the order they ran, lengths ascending.
        tables: by (schedule, length), the hash of the live rotary tables.
        baseline: the label that the others are compared with.
        threshold: share of the accuracy at the shortest length that counts as well enough.
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
        """Every length asked at, ascending."""
        return sorted({length for _, length in self.tables})

    @property
    def depths(self) -> list[float]:
        """Every depth, ascending."""
        return sorted({answer.depth for answer in self.answers})

    @property
    def trained_length(self) -> int | None:
        """The model's trained context, where known; plots mark it."""
        return self.model.get("trained_length")

    @cached_property
    def by_length(self) -> dict[tuple[str, int], list[Answer]]:
        """The answers of each schedule and length."""
        groups: dict[tuple[str, int], list[Answer]] = {key: [] for key in self.tables}
        for answer in self.answers:
            groups[answer.schedule, answer.length].append(answer)
        return groups
