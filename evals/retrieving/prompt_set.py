"""The questions of a retrieval run, made without a model."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import DataError
from ..data import documents
from ..data.windows import check_lengths
from ..running.options import RunOptions
from .filler import CorpusFiller, Generated
from .tasks import TASKS, Prompt, prompts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


MOST_TRIALS = 1000
"""At so many, an interval reaches at most 3 percent points to either side."""


@dataclass(frozen=True)
class RetrievalOptions(RunOptions):
    """The options of a retrieval run.

    Attributes:
        trials: prompts per length (and per depth, for passkey).
        seed: draws the texts and numbers. The same seed gives the same prompts, whatever the other lengths.
        haystack: a text to hide the numbers in; None for generated sentences.
        threshold: the share of the best accuracy at the shortest length that counts for the effective length.
        batch_tokens: feed prompts together up to this many positions (at least one).
        patching: keyword arguments of :func:`ropescale.patch`, such as ``layers`` or ``on_top``.
        source: the name of the haystack in the results.
        path: the checkpoint's folder, to fingerprint its files instead of the live parameters.
        progress: show a progress bar if stderr is a terminal, a line a minute if not.
    """

    trials: int = 10
    seed: int = 0
    haystack: str | None = None
    threshold: float = 0.85
    batch_tokens: int = 8192

    def __post_init__(self) -> None:
        for name in ("trials", "batch_tokens"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise DataError(f"{name} must be a whole number of 1 or more, not {value!r}")
        if self.trials > MOST_TRIALS:
            raise DataError(f"{self.trials} trials are too many, all are held in memory; give {MOST_TRIALS}", "trials")
        if not 0 < self.threshold <= 1:
            raise DataError(f"threshold must be above 0 and at most 1, like 0.85, not {self.threshold!r}")


class RetrievalPrompts:
    """All the questions of a run.

    Attributes:
        task: the name of the task.
        lengths, depths: ascending.
        bos: the id in front of every prompt, or None.
        bos_option: the argument ``bos``.
        prompts: the prompts of each length.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        lengths: int | str | Iterable[int | str],
        depths: Iterable[float] | int,
        task: str,
        bos: str | int,
        options: RetrievalOptions,
    ) -> None:
        if task not in TASKS:
            raise DataError(f"no task is called {task!r}; the tasks are {', '.join(TASKS)}")
        self.task, self.lengths, self.depths = task, check_lengths(lengths), check_depths(depths)
        self.bos_option, self.bos = bos, documents.bos_id(bos, tokenizer)
        filler = Generated() if options.haystack is None else CorpusFiller(options.haystack)
        self.prompts = {
            length: prompts(
                task, tokenizer, length, self.depths, options.trials, seed=options.seed, filler=filler, bos=self.bos
            )
            for length in self.lengths
        }

    @property
    def every(self) -> list[Prompt]:
        """The prompts of all lengths."""
        return [prompt for made in self.prompts.values() for prompt in made]

    @property
    def positions(self) -> int:
        """The number of tokens of all prompts, each read once."""
        return sum(length * len(made) for length, made in self.prompts.items())

    def check_ids(self, vocabulary: int) -> None:
        """Refuses ids that are not in the model's vocabulary.

        Raises:
            DataError: names the prompt, the position and the id.
        """
        asked = ((prompt, ending) for prompt in self.every for ending in range(len(prompt.endings)))
        every = (documents.Document(prompt.name, prompt.ids(ending).tolist(), None, "") for prompt, ending in asked)
        documents.check_ids(every, vocabulary, self.bos)


def asked_sha256(prompts: Sequence[Prompt]) -> str:
    """Returns a hash of the prompts' ids and of the places of the answers."""
    places = [(each.ending, each.start, each.stop) for prompt in prompts for each in prompt.questions]
    return hashlib.sha256(f"{prompts_sha256(prompts)} {places}".encode()).hexdigest()


def check_depths(depths: Iterable[float] | int) -> tuple[float, ...]:
    """Returns the depths, ascending and each once; a whole number spreads that many evenly from 0 to 1.

    Raises:
        DataError: there are none, or one is outside [0, 1].
    """
    if isinstance(depths, int) and not isinstance(depths, bool):
        if not 2 <= depths <= 1000:
            raise DataError(f"{depths} depths cannot be spread from 0 to 1; give 2 to 1000, or the depths themselves")
        return tuple(number / (depths - 1) for number in range(depths))
    if isinstance(depths, (bool, str, float)):
        raise DataError(f"depths {depths!r} are not a list of numbers from 0 to 1, like [0, 0.5, 1], or how many")
    given = list(depths)
    for depth in given:
        if isinstance(depth, (bool, str)) or not math.isfinite(depth) or not 0 <= depth <= 1:
            raise DataError(f"depth {depth!r} is not a number from 0 (the beginning) to 1 (the end)")
    if not given:
        raise DataError("no depths to ask at; give at least one from 0 to 1, like 0.5")
    return tuple(sorted({float(depth) for depth in given}))


def prompts_sha256(made: Iterable[Prompt]) -> str:
    """Returns a hash of every prompt's ids, little-endian int64, in order."""
    digest = hashlib.sha256()
    for prompt in made:
        digest.update(prompt.context.astype("<i8").tobytes() + prompt.endings.astype("<i8").tobytes())
    return digest.hexdigest()
