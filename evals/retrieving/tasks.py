"""Makes prompts of an exact length in tokens that ask for a number hidden in a long text. Does not need torch.

::

    [BOS] preamble  end of a sentence  filler ... KEY ... filler  |  question answer
    `--------------------------- context -------------------------'

The *length* includes everything from BOS to the answer. All questions of a prompt have the same number of tokens, and
end with their answer. The end of a sentence fills the space that is too short for a whole sentence. The *depth* is the
place of the key in the filler, at the nearest sentence boundary: 0 is before the filler, and 1 is after it.

The filler consists of seeded random sentences from ``words.json``, or of the user's text. Cutting characters cannot
give an exact length in tokens, so a prompt is joined from the ids of its sentences, each encoded as after a full stop.
A tokenizer that merges tokens across a full stop would encode the joined text differently.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, cycle, islice, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ...errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

T = TypeVar("T")

TASKS = {
    "passkey": "one key in each prompt",
    "multi-key": "at least four named keys, one at every depth, each asked for by its name",
}
"""The tasks, with a description of their prompts."""

LEAST_KEYS = 4
LONGER = "use a longer length"
_TRIES = 4_000


WORDS: dict[str, Any] = json.loads(Path(__file__).with_name("words.json").read_text(encoding="utf-8"))
"""The forms of sentences, their slots, and the words of each kind. The words contain no digits, so that no sentence can
contain a key, and none of :data:`NAMES`."""

NAMES: list[str] = WORDS["names"]
"""The names of keys."""

DIGITS = 5
"""The number of digits of a hidden number."""


class Dice:
    """Random numbers seeded by words. Unlike hashes and ``random.choice``, they are the same in every process and
    Python version."""

    def __init__(self, *words: object) -> None:
        # Python guarantees only for random() that its numbers stay the same between versions.
        self._next = random.Random(" ".join(map(str, words))).random

    def below(self, count: int) -> int:
        """Returns a whole number from ``range(count)``."""
        return int(self._next() * count)

    def one(self, things: Sequence[T]) -> T:
        """Draws an item."""
        return things[self.below(len(things))]


class Filler:
    """Random sentences from a small grammar. They begin with a space, have little meaning, and repeat only by chance.

    Attributes:
        numbers: all sequences of :data:`DIGITS` digits in the text, which cannot be keys.
    """

    numbers: Collection[str] = ()

    def sentences(self, dice: Dice) -> Iterator[str]:
        """Yields an endless sequence of sentences."""
        while True:
            form = dice.one(WORDS["forms"])
            sentence = form.format(**{slot: dice.one(WORDS[kind]) for slot, kind in WORDS["slots"].items()})
            yield f" {sentence[1].upper()}{sentence[2:]}"


class CorpusFiller(Filler):
    """The sentences of the user's text in order, starting at a random sentence, and starting over at the end."""

    def __init__(self, text: str) -> None:
        self.numbers = {found[1] for found in re.finditer(f"(?=([0-9]{{{DIGITS}}}))", text)}
        self._sentences = [sentence for sentence in _SENTENCE.findall(text) if sentence.strip()]
        if not self._sentences:
            raise DataError("the haystack is empty; give text to hide the keys in", "haystack")

    def sentences(self, dice: Dice) -> Iterator[str]:
        start = dice.below(len(self._sentences))
        return cycle([*self._sentences[start:], *self._sentences[:start]])


_SENTENCE = re.compile(r"\s*(?:[^.!?\n]|[.!?](?=\w)){1,400}[.!?]*|\s*[.!?]+")
"""A sentence, which ends with punctuation such as a full stop, at the end of a line, or after 400 characters."""


@dataclass(frozen=True)
class Question:
    """A question after the text of a prompt, with its answer.

    Attributes:
        ids: the tokens of the question and its answer.
        answer: the digits, or the answer from a file.
        tokens: the number of tokens of the answer, which are the last of ``ids``.
        depth: the requested depth, in [0, 1]; None for a prompt from a file.
        position: the number of positions before the key's first token; None for a prompt from a file.
    """

    ids: np.ndarray
    answer: str
    tokens: int
    depth: float | None = None
    position: int | None = None


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
    """A text with hidden keys, and the questions about them.

    Attributes:
        name: identifies the prompt in messages.
        task: the name of its task.
        context: ids with BOS, [context].
        questions: the questions, each directly after the context.
        generation: the generation after a prompt from a file; None if the answers are only scored in place.
    """

    name: str
    task: str
    context: np.ndarray
    questions: tuple[Question, ...]
    generation: Generation | None = None

    @property
    def length(self) -> int:
        """The number of positions of the context and the longest question."""
        return len(self.context) + max(len(question.ids) for question in self.questions)

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
        """The number of positions that fit the prompt with its answer, and the prompt with all generated tokens but the
        last."""
        return max(self.length, len(self.generation.ids) + self.new_tokens - 1 if self.generation else 0)

    def ids(self, question: int = 0) -> np.ndarray:
        """Returns the ids of the whole prompt with one of its questions, [positions]."""
        return np.concatenate([self.context, self.questions[question].ids])


def prompts(
    task: str, tokenizer: PreTrainedTokenizerBase, length: int, depths: Sequence[float], trials: int, *, seed: int,
    filler: Filler, bos: int | None,
) -> list[Prompt]:  # fmt: skip
    """Makes all prompts of one length. The ids depend only on the arguments.

    ``passkey`` makes ``trials`` prompts for every depth; ``multi-key`` has a key at every depth of every prompt.

    Raises:
        DataError: the length is too short, the tokenizer does not preserve digits, or it encodes too few names
            differently.
    """
    maker = _Maker(tokenizer, filler, bos)
    groups = [(depth,) for depth in depths] if task == "passkey" else [tuple(depths)]
    return [
        maker.prompt(task, length, group, trial, Dice(seed, task, length, *map(float, group), trial))
        for group in groups
        for trial in range(trials)
    ]


@dataclass(frozen=True)
class _Key:
    """A number to hide at a depth, with the ids of the sentence that contains it, and of the question with its answer.

    ``before`` is the number of tokens before the number in the sentence, and in the question.
    """

    depth: float
    number: str
    sentence: list[int]
    question: list[int]
    before: int


class _Maker:
    """Makes prompts from parts, which are encoded as inside a longer text, without special tokens.

    Raises:
        DataError: the tokenizer does not preserve the ten digits.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, filler: Filler, bos: int | None) -> None:
        self.tokenizer, self.filler = tokenizer, filler
        self.first = [] if bos is None else [bos]
        self._stop = self.beginning(".")
        for digits in ("90817263545", "11223344556677889900"):
            back = str(tokenizer.decode(self.inside(f" {digits}"), clean_up_tokenization_spaces=False))
            if digits not in "".join(back.split()):
                raise DataError(
                    f"the tokenizer cannot encode numbers: {digits} is decoded as {back[:60]!r}; "
                    "retrieval asks for numbers, so it needs a tokenizer that knows the ten digits"
                )

    def beginning(self, text: str) -> list[int]:
        """Returns the ids of a text at the beginning of a document."""
        return list(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def sentences(self, texts: Iterable[str]) -> list[list[int]]:
        """Returns the ids of each text after a full stop, because sentencepiece adds a space at the start of a text.

        A text whose beginning merges with the full stop is encoded without the full stop.
        """
        given, first = list(texts), len(self._stop)
        encoded = self.tokenizer([f".{text}" for text in given], add_special_tokens=False, verbose=False)["input_ids"]
        return [
            list(ids[first:]) if list(ids[:first]) == self._stop else self.beginning(text)
            for ids, text in zip(encoded, given, strict=True)
        ]

    def inside(self, text: str) -> list[int]:
        """Returns the ids of one text after a full stop."""
        return self.sentences([text])[0]

    def prompt(self, task: str, length: int, depths: Sequence[float], trial: int, dice: Dice) -> Prompt:
        """Makes a prompt that hides a key at each depth, and asks for all of them."""
        if task == "passkey":
            preamble = "There is a pass key in this text. Remember it."
            keys = [self._key(depths[0], " The pass key is", self._number(dice, ()))]
        else:
            preamble = "There are pass keys in this text. Remember them."
            keys = self._named_keys(depths, dice)
        head = [*self.first, *self.beginning(preamble)]
        room = length - len(head) - sum(len(key.sentence) for key in keys) - len(keys[0].question)
        if room < len(keys):
            fewer = ", or fewer depths" if len(depths) > 1 else ""
            raise DataError(
                f"length {length:,} is too short for {task}: the keys and the question take "
                f"{length - room + len(keys):,} tokens with this tokenizer; {LONGER}{fewer}"
            )
        fragment, *sentences = self._filling(dice, room)
        context, ends = [*head, *fragment], [0, *accumulate(map(len, sentences))]
        positions: dict[str, int] = {}
        done = 0
        for key in sorted(keys, key=lambda key: key.depth):
            wanted = key.depth * ends[-1]  # ties: the later boundary
            boundary = min(range(len(ends)), key=lambda number: (abs(ends[number] - wanted), -number))
            context.extend(chain.from_iterable(sentences[done:boundary]))
            positions[key.number] = len(context) + key.before
            context.extend(key.sentence)
            done = boundary
        context.extend(chain.from_iterable(sentences[done:]))
        questions = [
            Question(
                ids=np.array(key.question, np.int64),
                answer=key.number,
                tokens=len(key.question) - key.before,
                depth=key.depth,
                position=positions[key.number],
            )
            for key in keys[: len(depths)]
        ]
        name = f"{task} at {length:,}, depth {'/'.join(f'{depth:g}' for depth in depths)}, trial {trial}"
        return Prompt(name, task, np.array(context, np.int64), tuple(questions))

    def _key(self, depth: float, question: str, number: str) -> _Key:
        alone, asked, sentence = self.sentences([question, f"{question} {number}", f"{question} {number}."])
        before = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(alone, asked))))
        return _Key(depth, number, sentence, asked, before)  # the number's first token may include the space

    def _named_keys(self, depths: Sequence[float], dice: Dice) -> list[_Key]:
        """Draws a key for every depth, and additional keys that no question asks for, all with questions of the same
        number of tokens."""
        hidden = [*depths, *(dice.below(1001) / 1000 for _ in range(LEAST_KEYS - len(depths)))]
        keys: list[_Key] = []
        names: set[tuple[int, ...]] = set()

        def draw(depth: float) -> tuple[tuple[int, ...], _Key]:
            name = dice.one(NAMES)
            number = self._number(dice, [key.number for key in keys])
            return tuple(self.inside(f" {name}")), self._key(depth, f" The pass key of {name} is", number)

        sizes = [len(draw(0)[1].question) for _ in range(64)]
        usual = max(sorted(set(sizes)), key=sizes.count)
        for _ in range(_TRIES):
            name, key = draw(hidden[len(keys)])
            if len(key.question) == usual and name not in names:
                names.add(name)
                keys.append(key)
                if len(keys) == len(hidden):
                    return keys
        raise DataError(
            "the tokenizer encodes too few names differently for this task, or too few with the same number of tokens; "
            "use task passkey, or fewer depths"
        )

    def _number(self, dice: Dice, used: Sequence[str]) -> str:
        """Draws a number that does not occur elsewhere in the prompt."""
        for _ in range(25 * _TRIES):
            number = str(10 ** (DIGITS - 1) + dice.below(9 * 10 ** (DIGITS - 1)))
            if number not in used and number not in self.filler.numbers:
                return number
        raise DataError(
            f"the haystack contains nearly every number of {DIGITS} digits; use another haystack", "haystack"
        )

    def _filling(self, dice: Dice, room: int) -> list[list[int]]:
        """Returns the end of a sentence followed by whole sentences, ``room`` tokens in total."""
        stream, sentences, size = self.filler.sentences(dice), [], 0
        while size < room:
            for ids in self.sentences(islice(stream, 16)):
                if ids and size < room:
                    sentences.append(ids)
                    size += len(ids)
            if not sentences:
                raise DataError("the tokenizer makes no tokens of the haystack; use another haystack", "haystack")
        while size - room >= len(sentences[0]):  # the last sentence may be longer than the first
            size -= len(sentences.pop(0))
        return [sentences[0][size - room :], *sentences[1:]]
