"""The prompts of a retrieval run, made or read without a model."""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...errors import DataError
from ...files import sha256
from ..data import documents
from ..data.encoding import TextEncoder
from ..data.prompts import PromptRow, followed_by
from ..data.windows import check_lengths
from ..running.options import RunKeywords, RunOptions
from .filler import CorpusFiller, Generated
from .tasks import DIGITS, TASKS, Generation, Prompt, Question, prompts

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
        prompt_field, answer_field: of prompts from a file, the fields of a row; None for those of RULER and the like.
        new_tokens: of prompts from a file, how many tokens are generated; None is what its row says, or RULER's number
            for the task, and 128 for others.
        max_prompts: of prompts from a file, at most this many of each task and length; the first ones.
        match: of prompts from a file, "all" answers count, each for its share, or "any" one of them is enough; None is
            "any" for tasks that begin with ``qa``, and "all" for others.
        threshold: the share of the best accuracy at the shortest length that counts for the effective length.
        batch_tokens: feed prompts together up to this many positions (at least one).
        patching: keyword arguments of :func:`ropescale.patch`, such as ``layers`` or ``on_top``.
        source: the name of the haystack, or of the prompts, in the results.
        path: the checkpoint's folder, to fingerprint its files instead of the live parameters.
        progress: show a progress bar if stderr is a terminal, a line a minute if not.
    """

    trials: int = 10
    seed: int = 0
    haystack: str | None = None
    prompt_field: str | None = None
    answer_field: str | None = None
    new_tokens: int | None = None
    max_prompts: int | None = None
    match: str | None = None
    threshold: float = 0.85
    batch_tokens: int = 8192

    def __post_init__(self) -> None:
        for name in ("trials", "batch_tokens", "new_tokens", "max_prompts"):
            value = getattr(self, name)
            if value is None and name in ("new_tokens", "max_prompts"):
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise DataError(f"{name} must be a whole number of 1 or more, not {value!r}")
        if self.trials > MOST_TRIALS:
            raise DataError(f"{self.trials} trials are too many, all are held in memory; give {MOST_TRIALS}", "trials")
        if self.match not in (None, "all", "any"):
            raise DataError(f"match must be all or any, not {self.match!r}", "match")
        if not 0 < self.threshold <= 1:
            raise DataError(f"threshold must be above 0 and at most 1, like 0.85, not {self.threshold!r}")


class PromptCollection(ABC):
    """All the prompts of a run.

    Attributes:
        lengths: ascending.
        bos: the id in front of every prompt, or None.
        prompts: the prompts of each length.
        skipped: counts the rows of a file that are not asked, by the reason.
    """

    lengths: tuple[int, ...]
    bos: int | None
    prompts: dict[int, list[Prompt]]
    skipped: dict[str, int]

    @property
    @abstractmethod
    def protocol(self) -> dict[str, object]:
        """What of the "protocol" part of results.json is about the prompts."""

    @abstractmethod
    def text(self, ids: Sequence[int]) -> str:
        """Returns the text of generated ids."""

    @property
    def every(self) -> list[Prompt]:
        """The prompts of all lengths."""
        return [prompt for made in self.prompts.values() for prompt in made]

    def check_ids(self, vocabulary: int) -> None:
        """Refuses ids that are not in the model's vocabulary.

        Raises:
            DataError: names the prompt, the position and the id.
        """
        asked = ((prompt, ending) for prompt in self.every for ending in range(len(prompt.endings)))
        whole = (documents.Document(prompt.name, prompt.ids(ending).tolist(), None, "") for prompt, ending in asked)
        documents.check_ids(whole, vocabulary, self.bos)


class RetrievalPrompts(PromptCollection):
    """Prompts that are made: numbers hidden in a text, at each length and depth.

    Attributes:
        task: the name of the task.
        depths: ascending.
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
        self.bos_option, self.bos, self.options = bos, documents.bos_id(bos, tokenizer), options
        self.skipped = {}
        filler = Generated() if options.haystack is None else CorpusFiller(options.haystack)
        self.prompts = {
            length: prompts(
                task, tokenizer, length, self.depths, options.trials, seed=options.seed, filler=filler, bos=self.bos
            )
            for length in self.lengths
        }

    @property
    def protocol(self) -> dict[str, object]:
        return {
            "task": self.task,
            "holds": TASKS[self.task],
            "depths": list(self.depths),
            "digits": DIGITS,
            "trials": self.options.trials,
            "seed": self.options.seed,
            "bos": self.bos_option,
        }

    def text(self, ids: Sequence[int]) -> str:
        raise NotImplementedError("nothing is generated after prompts that are made here")


class FilePrompts(PromptCollection):
    """Prompts with their answers from rows of a file, each at the smallest length that holds it.

    As in RULER, the tokens that are generated count in the length. The last one is not fed, and BOS is in its place.

    Raises:
        DataError: a length that no prompt belongs to, or a prompt without a token before its answer.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        rows: Iterable[PromptRow],
        lengths: int | str | Iterable[int | str],
        bos: str | int,
        options: RetrievalOptions,
    ) -> None:
        self.lengths, self.bos_option, self.bos = check_lengths(lengths), bos, documents.bos_id(bos, tokenizer)
        self.tokenizer, self.options, self._encoder = tokenizer, options, TextEncoder(tokenizer)
        self.prompts: dict[int, list[Prompt]] = {length: [] for length in self.lengths}
        self.skipped = {"too_long": 0, "over_max_prompts": 0}
        self.new_tokens: dict[str, int] = {}
        self._alone: set[str] = set()
        longest, taken = 0, Counter[tuple[str, int]]()
        for row in rows:
            prompt = self._prompt(row)
            needed = max(prompt.length, _fed(prompt))
            length = next((each for each in self.lengths if needed <= each), None)
            longest = max(longest, needed)
            if length is None:
                self.skipped["too_long"] += 1
            elif taken[row.task, length] == options.max_prompts:
                self.skipped["over_max_prompts"] += 1
            else:
                taken[row.task, length] += 1
                self.prompts[length].append(prompt)
        if empty := [f"{length:,}" for length, made in self.prompts.items() if not made]:
            raise DataError(
                f"no prompt belongs to length {', '.join(empty)}: each is asked at the smallest length that holds it, "
                f"and the longest takes {longest:,} positions with what is generated; give other lengths",
                "lengths",
            )

    @property
    def protocol(self) -> dict[str, object]:
        return {
            "task": "prompts",
            "holds": "a prompt and its answers in each row",
            "depths": [],
            "new_tokens": self.new_tokens,
            "alone": sorted(self._alone),
            "bos": self.bos_option,
        }

    def text(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    def _prompt(self, row: PromptRow) -> Prompt:
        kind = row.task.partition("_")[0]
        new_tokens = self.options.new_tokens or row.new_tokens or NEW_TOKENS.get(kind, MOST_NEW_TOKENS)
        self.new_tokens[row.task] = max(new_tokens, self.new_tokens.get(row.task, 0))
        if row.joined is None:
            self._alone.add(row.task)
        texts = row.answers if row.joined is None else (row.joined,)
        first = [] if self.bos is None else [self.bos]
        whole = [followed_by(row.prompt, text, self._encoder)[1:] for text in texts]
        start = min(before for _, before in whole) - 1  # the last token before an answer is fed with it
        if start + len(first) < 1:
            raise DataError(f"{row.name}: the prompt has no token before its answer; give a longer prompt")
        context = np.array([*first, *whole[0][0].ids[:start]], np.int32)
        endings = [found.ids[start:].astype(np.int32) for found, _ in whole]
        questions = tuple(
            Question(None, None, None, text, number, len(first) + before, len(first) + len(found))
            for number, (text, (found, before)) in enumerate(zip(texts, whole, strict=True))
        )
        ids = np.array([*first, *self._encoder.whole([row.prompt]).ids], np.int32)
        any_of = kind == "qa" if self.options.match is None else self.options.match == "any"
        return Prompt(
            name=row.name,
            length=len(context) + max(map(len, endings)),
            trial=0,
            context=context,
            endings=endings,
            questions=questions,
            retokenizes=True,
            task=row.task,
            generation=Generation(ids, new_tokens, row.answers, any_of),
        )


NEW_TOKENS = {"niah": 128, "vt": 30, "cwe": 120, "fwe": 50, "qa": 32}
"""The tokens that RULER generates (its ``scripts/data/synthetic/constants.py``), by the beginning of a task's name."""

MOST_NEW_TOKENS = max(NEW_TOKENS.values())


def _fed(prompt: Prompt) -> int:
    """Counts the positions that are fed where its answer is generated: all but the last new token."""
    return 0 if prompt.generation is None else len(prompt.generation.ids) + prompt.generation.new_tokens - 1


def prompts_for(
    tokenizer: PreTrainedTokenizerBase,
    lengths: int | str | Iterable[int | str],
    depths: Iterable[float] | int,
    task: str,
    rows: Iterable[PromptRow] | None,
    bos: str | int,
    options: RetrievalOptions,
) -> PromptCollection:
    """Returns the prompts of the rows, or makes those of a task where there are none."""
    if rows is None:
        return RetrievalPrompts(tokenizer, lengths, depths, task, bos, options)
    return FilePrompts(tokenizer, rows, lengths, bos, options)


def asked_sha256(prompts: Sequence[Prompt]) -> str:
    """Returns a hash of the prompts' ids, of the places of the answers and of what is generated."""
    places = [(each.ending, each.start, each.stop) for prompt in prompts for each in prompt.questions]
    asked = [each.generation for each in prompts if each.generation is not None]
    generated = [(sha256(each.ids.astype("<i8").tobytes()), each.new_tokens) for each in asked]
    return sha256(f"{prompts_sha256(prompts)} {places} {generated or ''}".encode())


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
        digest.update(b"".join(ids.astype("<i8").tobytes() for ids in (prompt.context, *prompt.endings)))
    return digest.hexdigest()


class RetrievalKeywords(RunKeywords, total=False):
    """The fields of :class:`RetrievalOptions`, which says what they mean, for editors and type checkers."""

    trials: int
    seed: int
    haystack: str | None
    prompt_field: str | None
    answer_field: str | None
    new_tokens: int | None
    max_prompts: int | None
    match: str | None
    threshold: float
    batch_tokens: int
