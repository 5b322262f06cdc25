"""The prompts of a retrieval run, generated or read without a model."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...errors import DataError
from ...files import Data, Json
from ..data import documents
from ..data.documents import TextEncoder
from ..data.prompts import Generation, Prompt, PromptFields, PromptRow, Question, followed_by, prompt_row
from ..data.sources import read_prompts
from ..facts import DataFacts
from ..running.corpus import RunOptions
from .prompts import PASSKEY, passkey_prompts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MOST_TRIALS = 1000
"""The maximum number of trials, because all prompts are kept in memory. With this many, the interval of an accuracy is
at most ±3 percentage points."""

GENERATED = "generated"
"""The source of generated prompts."""

FILE = "prompts"
"""The task name of a run with prompts from a file, in which each prompt has its own task."""


@dataclass(frozen=True)
class RetrievalOptions(RunOptions):
    """The options of a retrieval run.

    Attributes:
        prompts: rows with a prompt and its answers, or a file or folder with such rows, as RULER's generators write
            them; used instead of generated prompts.
        bos: "auto" (the tokenizer's, if it has one), "yes", "no", or an id.
        trials: the number of prompts per length and depth.
        seed: determines the texts and numbers; the prompts of a length do not depend on the other lengths.
        prompt_field, answer_field: for prompts from a file, the fields of a row; None for fields such as RULER's.
        new_tokens: for prompts from a file, the number of tokens to generate. None uses the number in the row, RULER's
            number for the task, or 128, whichever is known first.
        max_prompts: for prompts from a file, the maximum number of prompts of each task and length; the first ones are
            used.
        match: for prompts from a file, "all" scores the share of answers found, and "any" requires one of them. None
            means "any" for the tasks ``qa`` and ``qa_...``, and "all" for other tasks.
        batch_tokens: the maximum number of positions fed together; at least one prompt is fed.
        patching: keyword arguments of :func:`ropescale.patch`, such as ``layers`` or ``on_top``.
        source: the name of the prompts in the results.
        notes: the notes to the user.
    """

    positive = ("batch_tokens", "trials", "new_tokens", "max_prompts")

    prompts: str | Path | Iterable[Json] | None = None
    bos: str | int = "auto"
    trials: int = 10
    seed: int = 0
    prompt_field: str | None = None
    answer_field: str | None = None
    new_tokens: int | None = None
    max_prompts: int | None = None
    match: str | None = None
    batch_tokens: int = 8192

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.trials > MOST_TRIALS:
            raise DataError(
                f"{self.trials} trials are too many to hold in memory; give at most {MOST_TRIALS}", "trials"
            )
        if self.match not in (None, "all", "any"):
            raise DataError(f"match must be all or any, not {self.match!r}", "match")


@dataclass(frozen=True)
class RetrievalPrompts:
    """All prompts of a run.

    Attributes:
        bos: the id in front of every prompt, or None.
        prompts: the prompts of each length, ascending.
        source: the name of the file, or "generated".
        protocol: the entries of "protocol" in results.json that describe the prompts.
        skipped: the number of omitted rows of a file, by reason.
    """

    tokenizer: PreTrainedTokenizerBase
    bos: int | None
    prompts: dict[int, list[Prompt]]
    source: str
    protocol: Data
    skipped: Counter[str] = field(default_factory=Counter)

    @property
    def every(self) -> list[Prompt]:
        """The prompts of all lengths."""
        return [prompt for of_length in self.prompts.values() for prompt in of_length]

    def check_ids(self, vocabulary: int) -> None:
        """Checks that all ids are in the model's vocabulary.

        Raises:
            DataError: an id is not; the message names the prompt, the position and the id.
        """
        whole = (
            documents.Document(prompt.name, question.ids.tolist(), None, "")
            for prompt in self.every
            for question in prompt.questions
        )
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
            "skipped": dict(self.skipped),
        }


def make_prompts(
    tokenizer: PreTrainedTokenizerBase,
    lengths: Sequence[int],
    depths: str | int | Iterable[float],
    options: RetrievalOptions,
) -> RetrievalPrompts:
    """Generates the prompts, or reads them from a file.

    Args:
        lengths: the lengths of the prompts in positions, including BOS and the answer.
        depths: see :func:`check_depths`; not used for prompts from a file.

    Raises:
        DataError: a length or a depth is invalid, a length is too short, the file does not exist, or a
            length has no prompt of the file.
    """
    bos = documents.bos_id(options.bos, tokenizer)
    if options.prompts is not None:
        return _from_file(tokenizer, lengths, bos, options)
    places = check_depths(depths)
    trials = options.trials
    seed = options.seed
    made = {each: passkey_prompts(tokenizer, each, places, trials, seed=seed, bos=bos) for each in lengths}
    protocol = {"task": PASSKEY, "trials": trials, "seed": seed, "bos": options.bos, "depths": list(places)}
    return RetrievalPrompts(tokenizer, bos, made, GENERATED, protocol)


def check_depths(depths: str | int | Iterable[float]) -> tuple[float, ...]:
    """Returns the distinct depths in ascending order.

    Args:
        depths: the depths of the keys from 0 (the start) to 1 (the end), or the number of evenly spaced depths; either
            may be text, such as "0,0.5,1" or "5".

    Raises:
        DataError: no depth is given, or a depth is not a number from 0 to 1.
    """
    places: set[float] = set()
    given: int | Iterable[float | str] = depths
    if isinstance(depths, str):
        given = int(depths) if depths.isdecimal() and depths != "0" and len(depths) < 20 else depths.split(",")
    if not isinstance(given, int):
        with suppress(TypeError, ValueError):
            places = set(map(float, given))
    elif 2 <= given <= 1000:
        places = {number / (given - 1) for number in range(given)}
    if not places or not all(0 <= depth <= 1 for depth in places):
        raise DataError(
            f"depths {depths!r} are neither a list of numbers from 0 (the start) to 1 (the end), such as 0,0.5,1, nor "
            "their count from 2 to 1,000; write a depth of 1 as 1.0",
            "depths",
        )
    return tuple(sorted(places))


NEW_TOKENS = {"niah": 128, "vt": 30, "cwe": 120, "fwe": 50, "qa": 32}
"""The number of tokens that RULER generates for a task (its ``scripts/data/synthetic/constants.py``), by the beginning
of the task's name."""


def _from_file(
    tokenizer: PreTrainedTokenizerBase, lengths: Sequence[int], bos: int | None, options: RetrievalOptions
) -> RetrievalPrompts:
    """Reads prompts with answers, and assigns each to the smallest length that fits it.

    As in RULER, the length includes the generated tokens. The last generated token is not fed, so its position is free
    for BOS.
    """
    fields = PromptFields(options.prompt_field, options.answer_field)
    given = options.prompts
    name = "in memory"
    if isinstance(given, (str, Path)):
        rows, name = read_prompts(given, fields)
    else:
        rows = (prompt_row(row, fields, f"prompt {number}", "prompts") for number, row in enumerate(given or ()))
    encoder = TextEncoder(tokenizer)
    made: dict[int, list[Prompt]] = {length: [] for length in lengths}
    skipped = Counter[str]()
    taken = Counter[tuple[str, int]]()
    new_tokens = Counter[str]()
    longest = 0
    known = set()
    for row in rows:
        if len(encoder.first(row.prompt.encode(), lengths[-1] + 1)) > lengths[-1]:  # before all of it is read
            longest = max(longest, lengths[-1] + 1)
            skipped["too_long"] += 1
            continue
        prompt = _prompt_of(row, encoder, bos, options)
        longest = max(longest, prompt.needed)
        length = next((length for length in lengths if prompt.needed <= length), None)
        key = row.task + prompts_sha256([prompt])
        if length is None:
            skipped["too_long"] += 1
        elif key in known:
            skipped["duplicates"] += 1
        elif taken[row.task, length] == options.max_prompts:
            skipped["over_max_prompts"] += 1
        else:
            known.add(key)
            taken[row.task, length] += 1
            made[length].append(prompt)
            new_tokens[row.task] = max(prompt.new_tokens, new_tokens[row.task])
    if empty := [f"{length:,}" for length, of_length in made.items() if not of_length]:
        raise DataError(
            f"no prompt belongs to length {', '.join(empty)}: each prompt is asked at the smallest length that fits "
            f"it, and the longest takes at least {longest:,} positions with its generated tokens; give other lengths",
            "lengths",
        )
    found = RetrievalPrompts(tokenizer, bos, made, options.source or name, {}, skipped)
    alone = sorted({prompt.task for prompt in found.every if len(prompt.questions) > 1})
    protocol = {"task": FILE, "depths": [], "new_tokens": dict(new_tokens), "alone": alone, "bos": options.bos}
    return replace(found, protocol=protocol)


def _prompt_of(row: PromptRow, encoder: TextEncoder, bos: int | None, options: RetrievalOptions) -> Prompt:
    """Encodes a row: the prompt with its answers in place, and the prompt for generation.

    Raises:
        DataError: the prompt has no token before its answer.
    """
    texts = row.answers if row.joined is None else (row.joined,)
    first = [] if bos is None else [bos]
    whole = [followed_by(row.prompt, text, encoder)[1:] for text in texts]
    if min(before for _, before in whole) + len(first) < 1:
        raise DataError(f"{row.name}: the prompt has no token before its answer; give a longer prompt")
    kind = row.task.partition("_")[0]
    return Prompt(
        name=row.name,
        task=row.task,
        questions=tuple(
            Question(np.array([*first, *encoded.ids], np.int64), text, len(encoded) - before)
            for text, (encoded, before) in zip(texts, whole)
        ),
        generation=Generation(
            ids=np.array([*first, *encoder.whole(row.prompt).ids], np.int64),
            new_tokens=options.new_tokens or row.new_tokens or NEW_TOKENS.get(kind, max(NEW_TOKENS.values())),
            answers=row.answers,
            any_of=kind == "qa" if options.match is None else options.match == "any",
        ),
    )


def prompts_sha256(prompts: Iterable[Prompt]) -> str:
    """Returns a hash of every prompt's ids, and for prompts from files of their generation settings, in order.

    All numbers are little-endian int64.
    """
    digest = hashlib.sha256()
    for prompt in prompts:
        parts = []
        sizes = []
        for question in prompt.questions:
            parts.append(question.ids)
            sizes += [len(question.ids), question.tokens]
        if asked := prompt.generation:
            parts += [asked.ids, np.array([*sizes, len(asked.ids), asked.new_tokens])]
        for part in parts:
            digest.update(part.astype("<i8").tobytes())
    return digest.hexdigest()
