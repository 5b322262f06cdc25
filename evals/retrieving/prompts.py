"""The prompts of retrieval. Makes prompts of an exact length in tokens that ask for a number hidden in a long text.

::

    [BOS] preamble  end of a sentence  filler ... KEY ... filler  question answer

The *length* includes everything from BOS to the answer. The end of a sentence fills the space that is too short for a
whole sentence. The *depth* is the place of the key in the filler, at the nearest sentence boundary: 0 is before the
filler, and 1 is after it. This module does not need torch.

The filler consists of seeded random sentences from ``words.json``. Cutting characters cannot give an exact length in
tokens, so a prompt is joined from the ids of its sentences, each encoded as after a full stop. A tokenizer that merges
tokens across a full stop would encode the joined text differently.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, islice, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ...errors import DataError
from ..data.prompts import Prompt, Question

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

T = TypeVar("T")

PASSKEY = "passkey"
"""The task name of generated prompts."""

WORDS: dict[str, Any] = json.loads(Path(__file__).with_name("words.json").read_text(encoding="utf-8"))
"""The forms of sentences, their slots, and the words of each kind. The words contain no digits, so that no sentence can
contain a key."""

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


def random_sentences(dice: Dice) -> Iterator[str]:
    """Yields endless random sentences from a small grammar.

    They begin with a space, have little meaning, and repeat only by chance.
    """
    while True:
        form = dice.one(WORDS["forms"])
        words = {slot: dice.one(WORDS[kind]) for slot, kind in WORDS["slots"].items()}
        sentence = form.format(**words)
        yield f" {sentence[1].upper()}{sentence[2:]}"


def passkey_prompts(
    tokenizer: PreTrainedTokenizerBase, length: int, depths: Sequence[float], trials: int, *, seed: int, bos: int | None
) -> list[Prompt]:
    """Makes ``trials`` prompts of one length for every depth. The ids depend only on the arguments.

    Raises:
        DataError: the length is too short, or the tokenizer does not preserve digits.
    """
    maker = _Maker(tokenizer, bos)
    return [
        maker.prompt(length, depth, trial, Dice(seed, PASSKEY, length, float(depth), trial))
        for depth in depths
        for trial in range(trials)
    ]


class _Maker:
    """Makes prompts from parts, which are encoded as inside a longer text, without special tokens.

    Raises:
        DataError: the tokenizer does not preserve the ten digits.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, bos: int | None) -> None:
        self.tokenizer = tokenizer
        self.first = [] if bos is None else [bos]
        self._stop = self.beginning(".")
        for digits in ("90817263545", "11223344556677889900"):
            back = str(tokenizer.decode(self.sentences([f" {digits}"])[0], clean_up_tokenization_spaces=False))
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
        given = list(texts)
        first = len(self._stop)
        encoded = self.tokenizer([f".{text}" for text in given], add_special_tokens=False, verbose=False)["input_ids"]
        return [
            list(ids[first:]) if list(ids[:first]) == self._stop else self.beginning(text)
            for ids, text in zip(encoded, given, strict=True)
        ]

    def prompt(self, length: int, depth: float, trial: int, dice: Dice) -> Prompt:
        """Makes a prompt that hides a number at a depth, and asks for it."""
        number = str(10 ** (DIGITS - 1) + dice.below(9 * 10 ** (DIGITS - 1)))
        key = " The pass key is"
        alone, question, sentence = self.sentences([key, f"{key} {number}", f"{key} {number}."])
        # The number's first token may include the space.
        before = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(alone, question))))
        head = [*self.first, *self.beginning("There is a pass key in this text. Remember it.")]
        room = length - len(head) - len(sentence) - len(question)
        if room < 1:
            raise DataError(
                f"length {length:,} is too short for {PASSKEY}: the key and the question take {length - room + 1:,} "
                f"tokens with this tokenizer; use a longer length"
            )
        fragment, *sentences = self._filling(dice, room)
        ends = [0, *accumulate(map(len, sentences))]
        # The boundary that is nearest to the depth; of two, the later one.
        boundary = min(range(len(ends)), key=lambda number: (abs(ends[number] - depth * ends[-1]), -number))
        start = [*head, *fragment, *chain.from_iterable(sentences[:boundary])]
        ids = [*start, *sentence, *chain.from_iterable(sentences[boundary:]), *question]
        return Prompt(
            name=f"{PASSKEY} at {length:,}, depth {depth:g}, trial {trial}",
            task=PASSKEY,
            questions=(Question(np.array(ids, np.int64), number, len(question) - before),),
            depth=depth,
            position=len(start) + before,
        )

    def _filling(self, dice: Dice, room: int) -> list[list[int]]:
        """Returns the end of a sentence followed by whole sentences, ``room`` tokens in total."""
        stream = random_sentences(dice)
        sentences = []
        size = 0
        while size < room:
            for ids in self.sentences(islice(stream, 16)):
                if ids and size < room:
                    sentences.append(ids)
                    size += len(ids)
            if not sentences:
                raise DataError("the tokenizer makes no tokens of English text, so it cannot encode the prompts")
        while size - room >= len(sentences[0]):  # the last sentence may be longer than the first
            size -= len(sentences.pop(0))
        return [sentences[0][size - room :], *sentences[1:]]
