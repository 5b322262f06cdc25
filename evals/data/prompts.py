"""Prompts with answers in the rows of a table, such as those of RULER's generators and published copies.

RULER (Hsieh et al. 2024, arXiv:2404.06654) writes one file of JSON lines per task, ``TASK/validation.jsonl``, with
``input``, ``outputs`` and, in newer versions, ``answer_prefix``; KVPress's copies split ``input`` into ``context``,
``question`` and ``answer_prefix``.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...errors import DataError
from ...files import Json, sha256
from ...output.formatting import listed
from .documents import Document, Encoded, Text, TextEncoder

PROMPTS = (("context", "question"), ("input",), ("prompt",))
"""The default fields of a prompt. The texts of two fields are joined, and ``answer_prefix`` follows if a row has it."""

ANSWERS = ("outputs", "answers", "answer", "output", "completion")
"""The default fields for the answers; the first one in a row is used."""

PREFIX = "answer_prefix"


@dataclass(frozen=True)
class PromptFields:
    """The fields of a row that contain the prompt and its answers; None for the default fields."""

    prompt: str | None = None
    answer: str | None = None


@dataclass(frozen=True)
class PromptRow:
    """A prompt and its answers.

    Attributes:
        name: the origin of the row.
        prompt: the prompt text, including the row's answer prefix.
        answers: one or more non-empty answers.
        task: the name of the task.
        new_tokens: the number of tokens to generate; None if the row does not give it.
    """

    name: str
    prompt: str
    answers: tuple[str, ...]
    task: str = ""
    new_tokens: int | None = None

    @property
    def joined(self) -> str | None:
        """All answers as one text, joined like the answers of the prompt's example; None if no example shows how."""
        if len(self.answers) == 1:
            return self.answers[0]
        example = _example(self.prompt)
        if re.match(r"1\. \S.* 2\. \S", example):
            return " ".join(f"{number}. {each}" for number, each in enumerate(self.answers, 1))
        if example.count(", ") == len(self.answers) - 1:
            return ", ".join(self.answers)
        return " ".join(self.answers) if len(example.split()) == len(self.answers) else None

    def document(self, encoder: TextEncoder) -> Document:
        """Returns the prompt and its answer as a document in which only the answer's tokens are scored.

        Several answers are joined like the answers of the prompt's example, or else by commas.
        """
        text, found, start = followed_by(self.prompt, self.joined or ", ".join(self.answers), encoder)
        scored = np.arange(len(found)) >= start
        return Document(self.name, found.ids, found.byte_ends, sha256(text.encode()), "prompt", scored)


def followed_by(prompt: str, answer: str, encoder: TextEncoder) -> tuple[str, Encoded, int]:
    """Encodes a prompt and its answer as one text, separated by a space unless the prompt ends with white space.

    Returns:
        The text, its tokens, and the number of tokens before the answer.
    """
    text = f"{prompt}{'' if prompt[-1:].isspace() else ' '}{answer}"
    found = encoder.whole(text)
    if found.byte_ends is not None:
        return text, found, int(np.searchsorted(found.byte_ends, len(prompt.encode()), side="right"))
    alone = np.array(encoder.whole(prompt.rstrip()).ids, np.int64)
    same = alone[: len(found)] == found.ids[: len(alone)]
    return text, found, int(np.argmin(same)) if not same.all() else len(same)


def prompt_row(row: Json, fields: PromptFields, name: str, source: str) -> PromptRow:
    """Reads the prompt and the answers of a row.

    Args:
        name: the row's name, for messages.
        source: the row's file, whose name determines the task if the row has no task.

    Raises:
        DataError: a field is missing or has another type.
    """
    has = f"it has {listed(row, 30) or 'none'}"
    names = (
        (fields.prompt,) if fields.prompt else next((pair for pair in PROMPTS if all(each in row for each in pair)), ())
    )
    if not names or (fields.prompt is None and names == ("input",) and "context" in row):
        # In LongBench's rows, "input" contains only the question.
        raise DataError(f"the prompt field of {name} is unknown; name it: {listed(row, 30) or 'none'}", "prompt_field")
    if fields.prompt is None and PREFIX in row:
        names = (*names, PREFIX)
    texts = [row.get(field) for field in names]
    for field, text in zip(names, texts, strict=True):
        if not isinstance(text, str):
            raise DataError(f"{name}: field {field!r} is missing or not text; {has}", "prompt_field")
    prompt = "".join(map(str, texts))
    field = fields.answer or next((each for each in ANSWERS if each in row), ANSWERS[0])
    if field not in row:
        raise DataError(f"{name} has no field {field!r}; {has}", "answer_field")
    given = row[field]
    several = given if isinstance(given, (list, tuple)) else [given]
    answers = tuple(each for each in several if isinstance(each, str) and each.strip())
    if not answers or len(answers) < len(several):
        raise DataError(f"{name}: field {field!r} holds no answer; give a text, or a list of texts", "answer_field")
    if not prompt.strip():
        raise DataError(f"{name}: the prompt is empty; give text in it", "prompt_field")
    for text in (prompt, *answers):
        Text(name, text)  # refuses text that UTF-8 cannot encode
    task = row.get("task")
    tokens = row.get("max_new_tokens")
    return PromptRow(
        name,
        prompt,
        answers,
        task if isinstance(task, str) and task else task_of(source),
        tokens if isinstance(tokens, int) and 0 < tokens <= 2**16 else None,
    )


def task_of(source: str) -> str:
    """Returns the name of a file's task: ``vt`` for ``vt/validation.jsonl`` and for ``vt.jsonl``."""
    path = Path(source)
    return path.parent.name or path.stem if path.stem in ("validation", "test", "train") else path.stem


_LONGEST = 300
"""The most characters of a question's end that are looked for in its example."""


def _example(prompt: str) -> str:
    """Returns the answer of the example in a prompt, which precedes the question; "" if there is none.

    The longest end of the prompt's last line that also occurs earlier, of at least two words, marks the example: the
    rest of the line after that earlier occurrence is the answer. The words before it may be values that differ between
    the example and the question.
    """
    text = prompt.rstrip()
    line = text[text.rfind("\n") + 1 :]
    starts = [word.start() for word in re.finditer(r"\S+", line) if len(line) - word.start() <= _LONGEST]
    for start in starts[:-1]:
        end = line[start:]
        _, found, after = text[: -len(end)].rpartition(end)
        if found:
            return after.partition("\n")[0].strip()
    return ""


# --- In the model's tokens


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


# --- Their numbers ---

_NO_TOKEN = -1
"""The id that pads shorter generated texts."""

Scores = tuple[np.ndarray, np.ndarray]
"""The NLL of each token of an answer in nats, fp32, and whether the token is ranked first, bool."""


def joined(prompts: Sequence[Prompt], scores: Sequence[Scores], written: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """Joins the scores and the generated ids of a batch of prompts into named arrays.

    "nll" and "first" have the scores of all answers, prompt after prompt; "ids" has the generated ids, int32 [prompts,
    new tokens], padded with -1.

    Args:
        scores: the scores of each answer.
        written: the generated ids of each prompt; empty without generation.
    """
    ids = np.full((len(prompts), prompts[0].new_tokens), _NO_TOKEN, np.int32)
    for row, own in zip(ids, written):
        row[: len(own)] = own
    nll, first = zip(*scores, strict=True)
    return {"nll": np.concatenate(nll), "first": np.concatenate(first), "ids": ids}
