"""Makes prompts of an exact length in tokens that ask for a number hidden in a long text. Needs no torch.

::

    [BOS] preamble  end of a sentence  filler ... KEY ... filler  |  question answer
    `--------------------------- context -------------------------'  `--- ending --'

A *length* counts all of it, BOS and answer included. Every ending of a prompt has the same number of tokens; the end
of a sentence fills the room that whole sentences leave. A *depth* is the place of the key in the filler, at the nearest
sentence boundary: 0 before the filler, 1 after it.

A prompt is joined from the ids of its sentences, each encoded as it would be after a full stop, because cutting
characters cannot give an exact length. A tokenizer that merges across a full stop would encode the same text
differently; :attr:`Prompt.retokenizes` says whether it does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, islice, pairwise, takewhile
from typing import TYPE_CHECKING

import numpy as np

from ...errors import DataError
from .filler import NAMES, Dice, Filler

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TASKS = {
    "passkey": "one key in each prompt",
    "multi-key": "a named key at every depth, each asked for by its name, among four at least",
    "multi-value": "a value at every depth, all asked for in their order",
    "variable-tracking": "a chain of three boxes from every depth, two at least; what is in the last box of each",
}
"""The tasks, each with the content of its prompts."""

DIGITS = 5
HOPS = 2
LEAST_KEYS = 4
LEAST_CHAINS = 2
LONGER = "use a longer length"
_TRIES = 4_000
_FEW_NAMES = (
    "the tokenizer tells too few names apart for this task, or too few of the same number of tokens; "
    "use task passkey, or fewer depths"
)


@dataclass(frozen=True)
class Question:
    """A question for one number, or for an answer from a file, whose place in the text is unknown (None).

    Attributes:
        depth: the requested depth, in [0, 1].
        actual_depth: tokens of filler before the key, over all tokens of filler.
        position: the number of positions before the key's first token.
        answer: the digits, or the answer from a file.
        ending: the number of the prompt's ending that asks for it.
        start, stop: the answer's tokens, as a half-open range of positions in the whole prompt.
    """

    depth: float | None
    actual_depth: float | None
    position: int | None
    answer: str
    ending: int
    start: int
    stop: int


@dataclass(frozen=True)
class Generation:
    """The generation after a prompt, and its scoring.

    Attributes:
        ids: the prompt with BOS, [positions].
        new_tokens: the most tokens to generate.
        answers: the texts to find in the generated text.
        any_of: whether one of them is enough.
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
        length: positions of the context and its longest ending.
        trial: the number of the trial, from 0.
        context: ids with BOS, [context].
        endings: ids of each question with its answer, [rest] each; equal in size in generated prompts.
        questions: the questions of all endings.
        retokenizes: whether the tokenizer makes the same ids from the whole text.
        task: the name of its task.
        generation: the generation after a prompt from a file; None if the answers are only scored in place.
    """

    name: str
    length: int
    trial: int
    context: np.ndarray
    endings: Sequence[np.ndarray]
    questions: tuple[Question, ...]
    retokenizes: bool
    task: str
    generation: Generation | None = None

    def ids(self, ending: int) -> np.ndarray:
        """Returns the whole prompt with one of its endings, [positions]."""
        return np.concatenate([self.context, self.endings[ending]])


class Encoder:
    """A tokenizer that encodes parts of a text as within a longer text, without special tokens.

    Raises:
        DataError: the tokenizer does not preserve the ten digits.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self._stop = self.beginning(".")
        for digits in ("90817263545", "11223344556677889900"):
            back = self.text(self.inside(f" {digits}"))
            if digits not in "".join(back.split()):
                raise DataError(
                    f"the tokenizer cannot write numbers: {digits} comes back as {back[:60]!r}; "
                    "retrieval asks for numbers, so it needs a tokenizer that knows the ten digits"
                )

    def beginning(self, text: str) -> list[int]:
        """Returns the ids of a text at the beginning of a document."""
        return list(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def inside(self, text: str) -> list[int]:
        """Returns the ids of a text after a full stop, because sentencepiece puts a space before a document."""
        return self._after_stop(self.beginning(f".{text}"), text)

    def sentences(self, texts: Iterable[str]) -> list[list[int]]:
        """Returns the ids of many texts, each after a full stop."""
        given = list(texts)
        encoded = self.tokenizer([f".{text}" for text in given], add_special_tokens=False, verbose=False)["input_ids"]
        return [self._after_stop(list(ids), text) for ids, text in zip(encoded, given, strict=True)]

    def text(self, ids: Sequence[int]) -> str:
        """Returns the text of these ids."""
        return str(self.tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))

    def before(self, text: str, at: int) -> int:
        """Counts the tokens of ``inside(text)`` that end before its character ``at``."""
        both = zip(self.inside(text), self.inside(text[:at]))
        return len(list(takewhile(lambda pair: pair[0] == pair[1], both)))

    def _after_stop(self, ids: list[int], text: str) -> list[int]:
        """Removes the full stop from the ids; encodes the text alone if its first token merged with the full stop."""
        first = len(self._stop)
        return ids[first:] if ids[:first] == self._stop else self.beginning(text)


@dataclass(frozen=True)
class Needle:
    """A sentence to hide at a depth. ``key`` is the number in it; "" for a link of a chain."""

    depth: float
    text: str
    key: str = ""


@dataclass(frozen=True)
class PromptTemplate:
    """The parts of a prompt: its needles and, for each ending, the question and its answers.

    ``asked`` pairs the text of an ending with the depths and the numbers of its answers, in their order in the text.
    """

    preamble: str
    needles: list[Needle]
    asked: list[tuple[str, list[tuple[float, str]]]]


def prompts(
    task: str, tokenizer: PreTrainedTokenizerBase, length: int, depths: Sequence[float], trials: int, *, seed: int,
    filler: Filler, bos: int | None,
) -> list[Prompt]:  # fmt: skip
    """Makes all prompts of one length. The ids depend only on the arguments, not on other lengths.

    ``passkey`` makes ``trials`` prompts for every depth; the others have a key at every depth of every prompt.

    Raises:
        DataError: the length is too short, or the tokenizer loses digits or cannot tell names apart.
    """
    maker = _Maker(Encoder(tokenizer), filler, bos)
    groups = [(depth,) for depth in depths] if task == "passkey" else [tuple(depths)]
    return [
        maker.prompt(task, length, group, trial, Dice(seed, task, length, *map(float, group), trial))
        for group in groups
        for trial in range(trials)
    ]


class _Sampler:
    """The numbers and names of a prompt, each drawn only once."""

    def __init__(self, dice: Dice, filler: Filler, encoder: Encoder) -> None:
        self.dice, self.filler, self.encoder = dice, filler, encoder
        self._numbers: set[str] = set()
        self._names: set[tuple[int, ...]] = set()

    def number(self) -> str:
        """Draws a number of :data:`DIGITS` digits that occurs nowhere else in the prompt."""
        number = self._unused_number()
        self._numbers.add(number)
        return number

    def name(self) -> str:
        """Draws a name that the tokenizer tells apart from the others."""
        for _ in range(_TRIES):
            name = self.dice.one(NAMES)
            if self._is_new(name):
                return name
        raise DataError(_FEW_NAMES)

    def pairs(self, count: int, ending: Callable[[str, str], str]) -> list[tuple[str, str]]:
        """Draws a name and a number for each of ``count`` endings with the most common number of tokens."""

        def draw() -> tuple[str, str, int]:
            name, number = self.dice.one(NAMES), self._unused_number()
            return name, number, len(self.encoder.inside(ending(name, number)))

        sizes = [draw()[2] for _ in range(64)]
        wanted = max(sorted(set(sizes)), key=sizes.count)
        pairs: list[tuple[str, str]] = []
        tries = 0
        while len(pairs) < count:
            name, number, size = draw()
            if size == wanted and self._is_new(name):
                self._numbers.add(number)
                pairs.append((name, number))
                tries = 0
            elif (tries := tries + 1) == _TRIES:
                raise DataError(_FEW_NAMES)
        return pairs

    def depths(self, count: int) -> list[float]:
        """Draws depths for needles that no question asks for."""
        return [self.dice.below(1001) / 1000 for _ in range(count)]

    def _unused_number(self) -> str:
        for _ in range(25 * _TRIES):
            number = str(10 ** (DIGITS - 1) + self.dice.below(9 * 10 ** (DIGITS - 1)))
            if number not in self._numbers and number not in self.filler:
                return number
        raise DataError(f"the haystack holds nearly every number of {DIGITS} digits; use another haystack")

    def _is_new(self, name: str) -> bool:
        """Whether the tokenizer tells a name apart from earlier ones; adds the name to these."""
        ids = tuple(self.encoder.inside(f" {name}"))
        known = ids in self._names
        self._names.add(ids)
        return not known


# --- the tasks ---------------------------------------------------------------------------------------------------


def _passkey(depths: Sequence[float], sampler: _Sampler) -> PromptTemplate:
    number = sampler.number()
    needle = Needle(depths[0], f" The pass key is {number}.", number)
    asked = (f" The pass key is {number}", [(depths[0], number)])
    return PromptTemplate("There is a pass key in this text. Remember it.", [needle], [asked])


def _multi_key(depths: Sequence[float], sampler: _Sampler) -> PromptTemplate:
    def ending(name: str, number: str) -> str:
        return f" The pass key of {name} is {number}"

    hidden = [*depths, *sampler.depths(LEAST_KEYS - len(depths))]
    keys = list(zip(hidden, sampler.pairs(len(hidden), ending)))
    needles = [Needle(depth, f"{ending(*pair)}.", pair[1]) for depth, pair in keys]
    asked = [(ending(*pair), [(depth, pair[1])]) for depth, pair in keys[: len(depths)]]
    return PromptTemplate("There are pass keys in this text. Remember them.", needles, asked)


def _multi_value(depths: Sequence[float], sampler: _Sampler) -> PromptTemplate:
    values = [(depth, sampler.number()) for depth in depths]
    needles = [Needle(depth, f" A pass key is {number}.", number) for depth, number in values]
    ending = " The pass keys, in order, are " + ", ".join(number for _, number in values)
    return PromptTemplate("There are pass keys in this text. Remember them in order.", needles, [(ending, values)])


def _variable_tracking(depths: Sequence[float], sampler: _Sampler) -> PromptTemplate:
    """Puts a number in one box, the same in the next, and so on; spreads the links evenly over the text after it."""

    def ending(name: str, number: str) -> str:
        return f" The number in the {name} box is {number}"

    starts = [*depths, *sampler.depths(LEAST_CHAINS - len(depths))]
    needles, asked = [], []
    for depth, (last, number) in zip(starts, sampler.pairs(len(starts), ending)):
        boxes = [*(sampler.name() for _ in range(HOPS)), last]
        needles.append(Needle(depth, f"{ending(boxes[0], number)}.", number))
        for hop, (old, new) in enumerate(pairwise(boxes), start=1):
            place = depth + (1 - depth) * hop / (HOPS + 1)
            needles.append(Needle(place, f" The {new} box holds the same number as the {old} box."))
        asked.append((ending(last, number), [(depth, number)]))
    return PromptTemplate("There are numbers in boxes in this text. Remember them.", needles, asked[: len(depths)])


_TEMPLATES: dict[str, Callable[[Sequence[float], _Sampler], PromptTemplate]] = {
    "passkey": _passkey,
    "multi-key": _multi_key,
    "multi-value": _multi_value,
    "variable-tracking": _variable_tracking,
}


# --- the prompt --------------------------------------------------------------------------------------------------


class _Maker:
    def __init__(self, encoder: Encoder, filler: Filler, bos: int | None) -> None:
        self.encoder, self.filler = encoder, filler
        self.first = [] if bos is None else [bos]

    def prompt(self, task: str, length: int, depths: Sequence[float], trial: int, dice: Dice) -> Prompt:
        template = _TEMPLATES[task](depths, _Sampler(dice, self.filler, self.encoder))
        endings = [self.encoder.inside(text) for text, _ in template.asked]
        hidden = sorted(template.needles, key=lambda needle: needle.depth)  # stable: a link comes after its box
        needles = [self.encoder.inside(needle.text) for needle in hidden]
        head = [*self.first, *self.encoder.beginning(template.preamble)]
        room = length - len(head) - sum(map(len, needles)) - len(endings[0])
        if room < len(needles):
            fewer = "" if task == "passkey" or len(depths) == 1 else ", or fewer depths"
            raise DataError(
                f"length {length:,} is too short for {task}: the keys and the question take "
                f"{length - room + len(needles):,} tokens with this tokenizer; {LONGER}{fewer}"
            )
        fragment, *sentences = self._filling(dice, room)
        context = [*head, *fragment]
        ends = [0, *accumulate(map(len, sentences))]
        places: dict[str, tuple[int, float]] = {}
        done = 0
        for needle, ids in zip(hidden, needles, strict=True):
            wanted = needle.depth * ends[-1]  # ties: the later boundary
            boundary = min(range(len(ends)), key=lambda number: (abs(ends[number] - wanted), -number))
            context.extend(chain.from_iterable(sentences[done:boundary]))
            if needle.key:
                inside = self.encoder.before(needle.text, needle.text.index(needle.key) - 1)
                places[needle.key] = len(context) + inside, ends[boundary] / max(1, ends[-1])
            context.extend(ids)
            done = boundary
        context.extend(chain.from_iterable(sentences[done:]))
        whole = [*context[len(self.first) :], *endings[0]]
        return Prompt(
            name=f"{task} at {length:,}, depth {'/'.join(f'{depth:g}' for depth in depths)}, trial {trial}",
            length=length,
            trial=trial,
            context=np.array(context, dtype=np.int64),
            endings=list(np.array(endings, dtype=np.int64)),
            questions=tuple(self._questions(template, places, len(context))),
            retokenizes=self.encoder.beginning(self.encoder.text(whole)) == whole,
            task=task,
        )

    def _filling(self, dice: Dice, room: int) -> list[list[int]]:
        """Returns the end of a sentence and whole sentences, ``room`` tokens together."""
        stream, sentences, size = self.filler.sentences(dice), [], 0
        while size < room:
            for ids in self.encoder.sentences(islice(stream, 16)):
                if ids and size < room:
                    sentences.append(ids)
                    size += len(ids)
            if not sentences:
                raise DataError("the tokenizer makes no tokens of the haystack's text; use another haystack")
        while size - room >= len(sentences[0]):  # the last sentence may be longer than the first
            size -= len(sentences.pop(0))
        return [sentences[0][size - room :], *sentences[1:]]

    def _questions(
        self, template: PromptTemplate, places: dict[str, tuple[int, float]], context: int
    ) -> Iterator[Question]:
        for ending, (text, answers) in enumerate(template.asked):
            for depth, number in answers:
                at = text.rindex(number)
                start = self.encoder.before(text, at - 1)  # the first token may include the space
                if not start:
                    raise DataError("the tokenizer cannot write the question; retrieval asks in English words")
                stop = self.encoder.before(text, at + len(number))
                position, actual = places[number]
                yield Question(depth, actual, position, number, ending, context + start, context + stop)
