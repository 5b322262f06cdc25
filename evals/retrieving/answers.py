"""Answers and their scores, and the rows that summarize them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..checking import Count, Length, Share
from .answering import InPlace
from .filler import DIGITS
from .tasks import Prompt

CHANCE = math.log(9) + (DIGITS - 1) * math.log(10)
"""The NLL in nats of a uniform guess among the numbers that can be hidden, which have no leading 0."""


def share_found(text: str, answers: Sequence[str], any_of: bool = False) -> float:
    """Returns the share of the answers found in a generated text, ignoring case; with ``any_of``, 1 if one is found.

    Equals RULER's ``string_match_all`` and ``string_match_part`` for one prompt (NVIDIA/RULER, ``scripts/eval``), but
    not in percent.
    """
    written = re.sub(r"[\x00-\x1f]", "\n", text.strip()).strip().lower()
    found = [float(answer.lower() in written) for answer in answers]
    return max(found) if any_of else sum(found) / len(found)


@dataclass(frozen=True)
class Answer:
    """The answer to one question under one schedule.

    Attributes:
        schedule: the schedule's label.
        length: positions of the prompt, BOS and answer included; for a prompt from a file, the length it belongs to.
        task: the name of the task.
        depth: the requested depth; None for a prompt from a file.
        prompt: the number of the prompt among those of this length; questions of one prompt share its text.
        position: the number of positions before the key; None for a prompt from a file.
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
    prompt: int
    position: int | None
    answer: str
    tokens: int
    correct: bool
    score: float
    nll: float
    generated: str | None = None


def answers_of(schedule: str, length: int, number: int, prompt: Prompt, scores: InPlace, written: str) -> list[Answer]:
    """Returns an answer for each question of a prompt; with generation, a single one for all its answers.

    Args:
        written: the generated text, which then determines the score.
    """
    answers = []
    for question, (nll, right) in zip(prompt.questions, scores, strict=True):
        place = (schedule, length, prompt.task, question.depth, number, question.position)
        correct, loss = bool(right.all()), float(nll.sum(dtype=np.float64))
        answers.append(Answer(*place, question.answer, question.tokens, correct, float(correct), loss))
    if prompt.generation is None:
        return answers
    text, tokens = "; ".join(each.answer for each in answers), sum(each.tokens for each in answers)
    correct, loss = all(each.correct for each in answers), sum(each.nll for each in answers)
    score = share_found(written, prompt.generation.answers, prompt.generation.any_of)
    return [Answer(schedule, length, prompt.task, None, number, None, text, tokens, correct, score, loss, written)]


@dataclass(frozen=True)
class AccuracyRow:
    """The accuracy and answer NLL of one schedule at one length, for one depth or task, or for all of them (None).

    ``accuracy`` is the mean score; over several tasks, the mean of the tasks' means, for the ``tasks`` with prompts at
    this length. ``accuracy_low`` and ``accuracy_high`` are Wilson's 95% interval, which is too wide if scores lie
    between 0 and 1. The interval of the NLL is Student's t over prompts; None with fewer than five.
    """

    schedule: str
    table_sha256: str
    length: Length
    task: str | None
    tasks: Count
    depth: Share | None
    answers: Count
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

    @property
    def part(self) -> str:
        """The row's task or depth; "all" for all questions."""
        return self.task or ("all" if self.depth is None else f"{100 * self.depth:.3g}%")


@dataclass(frozen=True)
class PairedAnswersRow:
    """The change of the answer NLL against the baseline, on the same questions of one length and task or all (None).

    ``delta_nll`` is the mean of the schedule minus the baseline's, in nats. Its interval over ``prompts`` holds for all
    ``comparisons`` of the run together; with too few prompts for any conclusion, ``comparisons`` is None, and each
    interval has 95% by itself.
    """

    schedule: str
    baseline: str
    length: Length
    task: str | None
    answers: Count
    prompts: Count
    comparisons: Count | None
    delta_nll: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class EffectiveRow:
    """The longest length up to which a schedule meets a threshold at every length; None without one.

    ``length`` is by ``needed``, a share of the baseline's score at the shortest length; 0 if that score is 0. ``ruler``
    is by RULER's own threshold of 0.856; None for the generated tasks.
    """

    schedule: str
    length: Length | None
    needed: Share
    ruler: Length | None
