"""The stored answers of a retrieval run, and the rows of accuracy."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..checking import Count, Length, Share
from ..metrics.stored import Measured


def share_found(text: str, answers: Sequence[str], any_of: bool = False) -> float:
    """Returns the share of the answers found in a generated text, ignoring case; with ``any_of``, 1 if one is found.

    Equals RULER's ``string_match_all`` and ``string_match_part`` for one prompt (NVIDIA/RULER, ``scripts/eval``), but
    not in percent.
    """
    written = re.sub(r"[\x00-\x1f]", "\n", text.strip()).strip().lower()
    found = [float(answer.lower() in written) for answer in answers]
    return max(found) if any_of else sum(found) / len(found)


def chance(digits: int) -> float:
    """Returns the NLL in nats of a uniform guess among numbers of ``digits`` digits without a leading 0."""
    return math.log(9) + (digits - 1) * math.log(10)


@dataclass(frozen=True)
class Answer:
    """The answer to one question under one schedule.

    Attributes:
        schedule: the schedule's label.
        length: positions of the prompt, BOS and answer included; for a prompt from a file, the length it belongs to.
        task: the name of the task.
        depth: the requested depth; None for a prompt from a file.
        actual_depth: the actual place of the key, as a share of the filler.
        trial, prompt: the numbers of the trial, and of the prompt among those of this length; questions of one prompt
            share its text.
        position: the number of positions before the key.
        answer: the digits, or the text that is scored in place.
        tokens: the number of tokens of the answer.
        correct: whether each of its tokens is ranked first in place, so that greedy decoding would write it.
        score: 1 or 0 for ``correct``; for a prompt from a file, the share of its answers in the generated text.
        nll: the NLL of the whole answer in nats; the sum of the NLLs if several answers are scored separately.
        generated: the text that greedy decoding wrote; None without generation.
    """

    schedule: str
    length: int
    task: str
    depth: float | None
    actual_depth: float | None
    trial: int
    prompt: int
    position: int | None
    answer: str
    tokens: int
    correct: bool
    score: float
    nll: float
    generated: str | None = None


@dataclass(frozen=True)
class AccuracyRow:
    """The accuracy and answer NLL of one schedule at one length, for one depth or task, or for all of them (None).

    ``accuracy`` is the mean score; over several tasks, the mean of the tasks' means, for the ``tasks`` with prompts at
    this length. ``correct`` counts full scores. ``accuracy_low`` and ``accuracy_high`` are Wilson's 95% interval, which
    is too wide if scores lie between 0 and 1. The interval of the NLL is Student's t over prompts; None with fewer than
    five.
    """

    schedule: str
    table_sha256: str
    length: Length
    task: str | None
    tasks: Count
    depth: Share | None
    answers: Count
    correct: Count
    accuracy: Share
    accuracy_low: Share
    accuracy_high: Share
    answer_nll: float
    answer_nll_low: float | None
    answer_nll_high: float | None

    @property
    def is_overall(self) -> bool:
        """Whether the row covers all questions of its length."""
        return self.depth is None and self.task is None


@dataclass(repr=False)
class StoredAnswers(Measured):
    """The answers of a finished (or interrupted) run.

    Attributes:
        cost: per schedule and length, the number of fed contexts; 0 if another schedule had the same tables.
        answers: the answers, with schedules in the order they ran, and lengths ascending.
        tables: the hash of the live rotary tables, by (schedule, length).
        baseline: the label of the schedule that the others are compared with.
        threshold: the share of the best accuracy at the shortest length that an effective length requires.
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
        """The depths, ascending; none for prompts from files."""
        return sorted({answer.depth for answer in self.answers if answer.depth is not None})

    @property
    def tasks(self) -> list[str]:
        """The tasks of prompts from files, if there are several."""
        found = sorted({answer.task for answer in self.answers if answer.generated is not None})
        return found if len(found) > 1 else []

    @property
    def trained_length(self) -> int | None:
        """The model's trained context, if known; plots mark it."""
        return self.model.get("trained_length")

    @property
    def chance(self) -> float | None:
        """The NLL in nats of a uniform guess among numbers of so many digits; None for prompts from files."""
        return chance(int(self.protocol["digits"])) if "digits" in self.protocol else None

    @cached_property
    def by_length(self) -> dict[tuple[str, int], list[Answer]]:
        """The answers of each schedule and length."""
        groups: dict[tuple[str, int], list[Answer]] = {key: [] for key in self.tables}
        for answer in self.answers:
            groups[answer.schedule, answer.length].append(answer)
        return groups
