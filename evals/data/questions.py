"""Prompts in the model's tokens, with what is asked and scored."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Question:
    """A whole prompt that ends with an answer to score.

    Attributes:
        ids: the tokens from BOS to the end of the answer, [positions].
        answer: the digits, or the answer from a file.
        tokens: the number of tokens of the answer, which are the last of ``ids``.
    """

    ids: np.ndarray
    answer: str
    tokens: int


@dataclass(frozen=True)
class Generation:
    """The generation after a prompt, and its scoring.

    Attributes:
        ids: the prompt with BOS, [positions].
        new_tokens: the maximum number of tokens to generate.
        answers: the texts to find in the generated text.
        any_of: whether one of the answers is enough.
    """

    ids: np.ndarray
    new_tokens: int
    answers: tuple[str, ...]
    any_of: bool


@dataclass(frozen=True)
class Prompt:
    """A text, and the answers to score after it.

    Attributes:
        name: identifies the prompt in messages.
        task: the name of its task.
        questions: the prompt with its answer, or with each of several answers.
        generation: the generation after a prompt from a file; None if the answer is only scored in place.
        depth: the requested depth, in [0, 1]; None for a prompt from a file.
        position: the number of positions before the key's first token; None for a prompt from a file.
    """

    name: str
    task: str
    questions: tuple[Question, ...]
    generation: Generation | None = None
    depth: float | None = None
    position: int | None = None

    @property
    def length(self) -> int:
        """The number of positions of the prompt with its longest answer."""
        return max(len(question.ids) for question in self.questions)

    @property
    def answer_tokens(self) -> int:
        """The number of tokens of all answers."""
        return sum(question.tokens for question in self.questions)

    @property
    def new_tokens(self) -> int:
        """The maximum number of tokens to generate."""
        return self.generation.new_tokens if self.generation else 0

    @property
    def needed(self) -> int:
        """The longer of prompt + answer and prompt + generation, in positions; the last token is never fed."""
        return max(self.length, len(self.generation.ids) + self.new_tokens - 1 if self.generation else 0)
