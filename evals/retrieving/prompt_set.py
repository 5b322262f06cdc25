"""The prompts of a retrieval run, generated or read without a model."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...errors import DataError
from ...files import sha256
from ..data import documents
from ..data.encoding import TextEncoder
from ..data.prompts import PromptFields, PromptRow, followed_by, prompt_row
from ..data.sources import read_prompts
from ..data.windows import check_lengths
from ..metrics.stored import DataFacts
from ..running.options import RunKeywords, RunOptions
from .filler import CorpusFiller, Generated
from .tasks import DIGITS, TASKS, Generation, Prompt, Question, prompts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MOST_TRIALS = 1000
"""The most trials; their interval is at most ±3 percentage points."""


@dataclass(frozen=True)
class RetrievalOptions(RunOptions):
    """The options of a retrieval run.

    Attributes:
        trials: prompts per length (and per depth, for passkey).
        seed: determines the texts and numbers; the prompts of a length do not depend on the other lengths.
        haystack: a text to hide the numbers in; None for generated sentences.
        prompt_field, answer_field: for prompts from a file, the fields of a row; None for fields such as RULER's.
        new_tokens: for prompts from a file, the number of tokens to generate; None for the number in the row, else
            RULER's for the task, else 128.
        max_prompts: for prompts from a file, the most prompts of each task and length; takes the first ones.
        match: for prompts from a file, "all" scores the share of answers found, and "any" requires one of them; None
            is "any" for the tasks ``qa`` and ``qa_...``, else "all".
        threshold: the share of the best accuracy at the shortest length that an effective length requires.
        batch_tokens: feed prompts together up to this many positions (at least one prompt).
        patching: keyword arguments of :func:`ropescale.patch`, such as ``layers`` or ``on_top``.
        source: the name of the haystack, or of the prompts, in the results.
        path: the checkpoint's folder, to fingerprint its files instead of the live parameters.
        progress: show a progress bar if stderr is a terminal, else one line per minute.
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
            is_left_out = value is None and name in ("new_tokens", "max_prompts")
            if not is_left_out and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise DataError(f"{name} must be a whole number of 1 or more, not {value!r}")
        if self.trials > MOST_TRIALS:
            raise DataError(
                f"{self.trials} trials are too many to hold in memory; give at most {MOST_TRIALS}", "trials"
            )
        if self.match not in (None, "all", "any"):
            raise DataError(f"match must be all or any, not {self.match!r}", "match")
        if not 0 < self.threshold <= 1:
            raise DataError(f"threshold must be above 0 and at most 1, like 0.85, not {self.threshold!r}")


class PromptSelection:
    """The selection of a run's prompts: a task at lengths and depths, or a file.

    Args:
        lengths: positions of the prompts, BOS and answer included.
        depths: the places of the keys, from 0 (first) to 1 (last), or a number of evenly spread places.
        task: the name of the task.
        bos: "auto" (the tokenizer's, if it has one), "yes", "no", or an id.
        prompts: rows, or a file or folder of them, instead of the task.

    Raises:
        DataError: a length or a depth is invalid.
    """

    def __init__(
        self,
        lengths: int | str | Iterable[int | str],
        depths: Iterable[float] | int = 5,
        task: str = "passkey",
        bos: str | int = "auto",
        prompts: str | Path | Iterable[Mapping[str, object]] | None = None,
    ) -> None:
        self.lengths, self.depths = check_lengths(lengths), check_depths(depths)
        self.task, self.bos, self.prompts = task, bos, prompts

    def made(self, tokenizer: PreTrainedTokenizerBase, options: RetrievalOptions) -> RetrievalPrompts:
        """Makes the prompts of the task, or reads those of the file.

        Raises:
            DataError: the task or file does not exist, a length is too short for the task, or no prompt of the file
                belongs to it.
        """
        bos = documents.bos_id(self.bos, tokenizer)
        if self.prompts is not None:
            return _from_file(self, tokenizer, bos, options)
        if self.task not in TASKS:
            raise DataError(f"no task is called {self.task!r}; the tasks are {', '.join(TASKS)}")
        filler = Generated() if options.haystack is None else CorpusFiller(options.haystack)
        asked = {
            length: prompts(
                self.task, tokenizer, length, self.depths, options.trials, seed=options.seed, filler=filler, bos=bos
            )
            for length in self.lengths
        }
        protocol = {
            "task": self.task,
            "holds": TASKS[self.task],
            "depths": list(self.depths),
            "digits": DIGITS,
            "trials": options.trials,
            "seed": options.seed,
            "bos": self.bos,
        }
        source = options.source or ("generated" if options.haystack is None else "in memory")
        return RetrievalPrompts(tokenizer, self, bos, asked, source, protocol)


@dataclass(frozen=True)
class RetrievalPrompts:
    """All the prompts of a run.

    Attributes:
        selection: the requested prompts.
        bos: the id in front of every prompt, or None.
        prompts: the prompts of each length, ascending.
        source: the name of the haystack, or of the file.
        protocol: the part of "protocol" in results.json that is about the prompts.
        skipped: the number of omitted rows of a file, by reason.
    """

    tokenizer: PreTrainedTokenizerBase
    selection: PromptSelection
    bos: int | None
    prompts: dict[int, list[Prompt]]
    source: str
    protocol: dict[str, object]
    skipped: Counter[str] = field(default_factory=Counter)

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths, ascending."""
        return self.selection.lengths

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

    @property
    def data(self) -> DataFacts:
        """The "data" part of results.json."""
        every = self.every
        return {
            "source": self.source,
            "sha256": prompts_sha256(every),
            "documents": len(every),
            "tokens": sum(prompt.length for prompt in every),
            "questions": sum(len(prompt.questions) for prompt in every),
            "not_retokenized": sum(not prompt.retokenizes for prompt in every),
            "skipped": dict(self.skipped),
        }


NEW_TOKENS = {"niah": 128, "vt": 30, "cwe": 120, "fwe": 50, "qa": 32}
"""The tokens that RULER generates (its ``scripts/data/synthetic/constants.py``), by the beginning of a task's name."""


def _from_file(
    selection: PromptSelection, tokenizer: PreTrainedTokenizerBase, bos: int | None, options: RetrievalOptions
) -> RetrievalPrompts:
    """Reads prompts with answers, each for the smallest sufficient length.

    As in RULER, the length includes the generated tokens. The last of these is not fed; BOS takes its place.
    """
    fields, given, name = PromptFields(options.prompt_field, options.answer_field), selection.prompts, "in memory"
    if isinstance(given, (str, Path)):
        rows, name = read_prompts(given, fields)
    else:
        rows = (prompt_row(row, fields, f"prompt {number}", "prompts") for number, row in enumerate(given or ()))
    encoder, asked = TextEncoder(tokenizer), {length: list[Prompt]() for length in selection.lengths}
    skipped, new_tokens, alone = Counter(too_long=0, over_max_prompts=0), dict[str, int](), set[str]()
    longest, taken = 0, Counter[tuple[str, int]]()
    for row in rows:
        prompt = prompt_of(row, encoder, bos, options)
        if row.joined is None:
            alone.add(row.task)
        generated = prompt.generation.new_tokens if prompt.generation else 0
        new_tokens[row.task] = max(generated, new_tokens.get(row.task, 0))
        needed = max(prompt.length, len(prompt.generation.ids) + generated - 1 if prompt.generation else 0)
        longest = max(longest, needed)
        length = next((length for length in selection.lengths if needed <= length), None)
        if length is None:
            skipped["too_long"] += 1
        elif taken[row.task, length] == options.max_prompts:
            skipped["over_max_prompts"] += 1
        else:
            taken[row.task, length] += 1
            asked[length].append(prompt)
    if empty := [f"{length:,}" for length, prompts in asked.items() if not prompts]:
        raise DataError(
            f"no prompt belongs to length {', '.join(empty)}: each is asked at the smallest length that holds it, "
            f"and the longest takes {longest:,} positions with its generated tokens; give other lengths",
            "lengths",
        )
    protocol: dict[str, object] = {
        "task": "prompts",
        "holds": "a prompt and its answers in each row",
        "depths": [],
        "new_tokens": new_tokens,
        "alone": sorted(alone),
        "bos": selection.bos,
    }
    return RetrievalPrompts(
        tokenizer, selection, bos, asked, options.source or name, protocol, +skipped
    )  # + drops zeros


def prompt_of(row: PromptRow, encoder: TextEncoder, bos: int | None, options: RetrievalOptions) -> Prompt:
    """Encodes a row: the prompt for generation, and its answers in place.

    Raises:
        DataError: the prompt has no token before its answer.
    """
    kind = row.task.partition("_")[0]
    texts = row.answers if row.joined is None else (row.joined,)
    first = [] if bos is None else [bos]
    whole = [followed_by(row.prompt, text, encoder)[1:] for text in texts]
    start = min(before for _, before in whole) - 1  # the last token before an answer is fed with it
    if start + len(first) < 1:
        raise DataError(f"{row.name}: the prompt has no token before its answer; give a longer prompt")
    context = np.array([*first, *whole[0][0].ids[:start]], np.int32)
    endings = [encoded.ids[start:].astype(np.int32) for encoded, _ in whole]
    questions = tuple(
        Question(None, None, None, text, number, len(first) + before, len(first) + len(encoded))
        for number, (text, (encoded, before)) in enumerate(zip(texts, whole, strict=True))
    )
    generation = Generation(
        ids=np.array([*first, *encoder.whole([row.prompt]).ids], np.int32),
        new_tokens=options.new_tokens or row.new_tokens or NEW_TOKENS.get(kind, max(NEW_TOKENS.values())),
        answers=row.answers,
        any_of=kind == "qa" if options.match is None else options.match == "any",
    )
    length = len(context) + max(map(len, endings))
    return Prompt(row.name, length, 0, context, endings, questions, True, row.task, generation)


def asked_sha256(prompts: Sequence[Prompt]) -> str:
    """Returns a hash of the prompts' ids, answer positions and generation settings."""
    places = [(each.ending, each.start, each.stop) for prompt in prompts for each in prompt.questions]
    asked = [each.generation for each in prompts if each.generation is not None]
    generated = [(sha256(each.ids.astype("<i8").tobytes()), each.new_tokens) for each in asked]
    return sha256(f"{prompts_sha256(prompts)} {places} {generated or ''}".encode())


def check_depths(depths: Iterable[float] | int) -> tuple[float, ...]:
    """Returns the distinct depths in ascending order; an integer spreads that many evenly from 0 to 1.

    Raises:
        DataError: there are none, or one is outside [0, 1].
    """
    if isinstance(depths, int) and not isinstance(depths, bool):
        if not 2 <= depths <= 1000:
            raise DataError(f"{depths} depths cannot be spread from 0 to 1; give 2 to 1000, or the depths themselves")
        return tuple(number / (depths - 1) for number in range(depths))
    if isinstance(depths, (bool, str, float)):
        raise DataError(f"depths must be numbers from 0 to 1, like [0, 0.5, 1], or how many to spread, not {depths!r}")
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
    """The fields of :class:`RetrievalOptions`, for editors and type checkers."""

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
