"""Generated texts that teach the reference model to answer, none of which a retrieval run asks.

They are made as :mod:`ropescale.evals.passkey` makes its prompts, and differ in three ways. Their seeds begin at
:data:`FIRST_SEED`, so the sentences and their order are others. Half of them hide the keys in modules that the model
was trained on, the others in generated sentences. And no key is a multiple of :data:`UNTAUGHT`, so that a third of all
numbers is asked by a run and was never taught.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ..data.documents import bos_id
from ..passkey.filler import Borrowed, Dice, Filler, Generated
from ..passkey.tasks import Prompt, prompts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FIRST_SEED = 2**40
"""The first lesson's seed; a run's is 0 unless it is told another."""

UNTAUGHT = 3
"""Multiples of this number are never a key of a lesson."""

SHORTEST = {"passkey": 48, "multi-key": 176, "multi-value": 128}
"""The tasks that are taught, each with the least tokens that its prompts take with this tokenizer."""

IGNORED = -100
"""The label of a token whose loss does not count, as in transformers."""


@dataclass(frozen=True)
class Lesson:
    """Prompts of one task and length, with the loss on the answers alone.

    Attributes:
        ids: int64 [prompts, length].
        labels: the same with :data:`IGNORED` everywhere but at the answers.
    """

    ids: torch.Tensor
    labels: torch.Tensor


class Lessons:
    """Makes lessons, each from its number alone.

    Args:
        tokenizer: encodes the texts.
        modules: texts that keys are hidden in, besides generated sentences.
        seed: of the run of lessons.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, modules: Sequence[str], seed: int = 0) -> None:
        self.tokenizer, self.seed = tokenizer, seed
        self.generated, self.borrowed = _Taught(Generated()), [_Taught(Borrowed(text)) for text in modules]

    def lesson(self, number: int, task: str, longest: int, size: int) -> Lesson:
        """Returns ``size`` prompts of one task, all of one length between the task's shortest and ``longest``."""
        dice, least = Dice("lesson", self.seed, number), SHORTEST[task]
        length = least + dice.below(max(0, longest - least) + 1)
        found = [self._prompt(task, length, dice) for _ in range(size)]
        rows = [(prompt, dice.below(len(prompt.endings))) for prompt in found]
        ids = torch.stack([torch.from_numpy(prompt.ids(ending)) for prompt, ending in rows])
        return Lesson(ids, torch.stack([_labels(prompt, ending) for prompt, ending in rows]))

    def _prompt(self, task: str, length: int, dice: Dice) -> Prompt:
        depths = sorted({dice.below(1001) / 1000 for _ in range(1 if task == "passkey" else _KEYS)})
        filler = self.generated if not self.borrowed or dice.below(2) else dice.one(self.borrowed)
        seed = FIRST_SEED + dice.below(2**40)
        bos = bos_id("auto", self.tokenizer)
        return prompts(task, self.tokenizer, length, depths, 1, seed=seed, filler=filler, bos=bos)[0]


_KEYS = 3
"""Keys that a prompt of several is asked for."""


class _Taught:
    """Sentences among which no key is a multiple of :data:`UNTAUGHT`."""

    def __init__(self, filler: Filler) -> None:
        self._filler = filler

    def sentences(self, dice: Dice) -> Iterator[str]:
        return self._filler.sentences(dice)

    def __contains__(self, key: str) -> bool:
        return int(key) % UNTAUGHT == 0 or key in self._filler


def _labels(prompt: Prompt, ending: int) -> torch.Tensor:
    """Returns the ids of a prompt with one of its endings, ignored everywhere but at the answers."""
    ids = torch.from_numpy(prompt.ids(ending))
    labels = torch.full_like(ids, IGNORED)
    for question in prompt.questions:
        if question.ending == ending:
            labels[question.start : question.stop] = ids[question.start : question.stop]
    return labels
