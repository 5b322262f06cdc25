"""Runs the same prompts with every schedule: schedules x lengths x prompts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from ...models.rotary_modules import evaluating
from ..data.windows import Window, check_lengths
from ..metrics.stored import ModelFacts
from ..parallel.processes import Group, World
from ..running import fingerprints
from ..running.corpus_run import Job, ScoresBatches, task_of
from ..running.progress import Notes
from ..running.runner import Facts, Runner, Task
from ..running.variants import HeldTables, WithTables, names_for, trained_length, variants
from ..scoring import memory
from ..scoring.batches import Batch, BatchPlan, Feed
from ..statistics.intervals import PERCENT
from ..store import Store
from .answering import AnswerScorer, PromptBatches, stored_numbers, unpack
from .answers import Answer, answers_of
from .prompt_set import RetrievalOptions, RetrievalPrompts, asked_sha256, make_prompts
from .results import Retrieval
from .tasks import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ..running.checkpoint import Checkpoint
    from ..running.options import Schedules

ANSWERING = 2
"""A version, raised when the same model and prompts would give other answers, so that stored ones are not reused."""


class RetrievalRun(ABC):
    """An interruptible retrieval run: :meth:`result` has the complete schedules and lengths.

    Subclasses answer with a loaded model or servers: they prepare the scorer (:meth:`_ready`), and return it for given
    tables (:meth:`_scoring`).

    Attributes:
        variants: the labelled schedules.
        baseline: the label of the baseline.
        facts: the facts that every answer depends on, besides those of its task.
        model_facts: the "model" part of results.json.
        protocol: further entries of the "protocol" part of results.json.
    """

    facts: Facts
    model_facts: ModelFacts

    def __init__(
        self, prompt_set: RetrievalPrompts, options: RetrievalOptions, made: Sequence[WithTables], baseline: str,
        trained: int | None, batch_tokens: int = 1,
    ) -> None:  # fmt: skip
        self.prompt_set, self.options, self.notes = prompt_set, options, Notes.of(options.progress)
        self.variants, self.baseline, self.trained_length = made, baseline, trained
        self.protocol: dict[str, object] = {}
        self.answers: list[Answer] = []
        self.tables: dict[tuple[str, int], str] = {}
        self._plans = {length: plan_prompts(prompts, batch_tokens) for length, prompts in prompt_set.prompts.items()}

    @property
    def finished(self) -> str:
        """The completed parts, as text; "" for none."""
        return f"{len(self.tables)} finished parts" if self.tables else ""

    def run(self, store: Store | None = None, group: Group | None = None) -> None:
        """Asks the prompts under every schedule; :attr:`answers` has the complete ones even after an interruption.

        Args:
            store: keeps finished batches, which are not asked again.
            group: the processes that share the prompts; only the first one's :attr:`answers` are complete then.
        """
        asked = {"lengths": list(self.prompt_set.prompts), **self.prompt_set.protocol, "source": self.prompt_set.source}
        about = {"kind": "retrieval", "facts": self.facts, "batch_tokens": self.options.batch_tokens, **asked}
        runner = Runner(self.facts, store or Store(), group or Group(World()), self.notes, self.work)
        with self._ready():
            held = [variant.tables(self.prompt_set.prompts) for variant in self.variants]
            runner.take([self._task(length, tables) for each in held for length, tables in each.items()])
            runner.announce(about)
            runner.run(about)

    # --- Implemented for a loaded model and for servers ---

    def work(self, positions: int) -> float:
        """Returns the work per token in a prompt of ``positions``, in any unit."""
        return 1.0

    @abstractmethod
    def _ready(self) -> AbstractContextManager[object]:
        """Prepares the scorer inside the block."""

    @abstractmethod
    def _scoring(self, tables: HeldTables, prompts: Sequence[Prompt]) -> ScoresBatches:
        """Returns the scorer of some prompts for given tables."""

    # --- the result ---

    def planned(self) -> dict[str, Any]:
        """Returns the part of results.json that is known before the run."""
        lengths, known = self.prompt_set.prompts, self.result()
        rows = [{"schedule": variant.label, "length": length} for variant in self.variants for length in lengths]
        return {"model": known.model, "data": known.data, "protocol": known.protocol, "rows": rows}

    def result(self) -> Retrieval:
        """Returns the result of all complete parts."""
        return Retrieval(
            model={**self.model_facts, "trained_length": self.trained_length},
            data=self.prompt_set.data,
            protocol={
                "name": "retrieval",
                **self.prompt_set.protocol,
                "has_bos": self.prompt_set.bos is not None,
                **names_for(self.variants),
                **self.protocol,
                "interval": f"Wilson {PERCENT}; answer NLL: t over prompts, {PERCENT}",
                "batch_tokens": self.options.batch_tokens,
            },
            versions=fingerprints.versions(),
            answers=list(self.answers),
            tables=dict(self.tables),
            baseline=self.baseline,
        )

    def _task(self, length: int, tables: HeldTables) -> Task:
        prompts, job = self.prompt_set.prompts[length], Job(tables, (length,), self._plans[length])

        def finish(stored: Sequence[np.ndarray]) -> None:
            for number, (prompt, numbers) in enumerate(zip(prompts, stored, strict=True)):
                scores, ids = unpack(prompt, numbers)
                written = str(self.prompt_set.tokenizer.decode(ids, skip_special_tokens=True))
                self.answers += answers_of(job.label, length, number, prompt, scores, written)
            self.tables[job.label, length] = tables.table_sha256

        task = task_of(job.label, job, self._scoring(tables, prompts), finish, asked=asked_sha256(prompts))
        return replace(task, nll=False)


class LoadedRetrieval(RetrievalRun):
    """A retrieval run of a loaded model."""

    def __init__(
        self, model: PreTrainedModel, prompt_set: RetrievalPrompts, schedules: Schedules, options: RetrievalOptions
    ) -> None:
        made, baseline = variants(model, schedules, Notes.of(options.progress))
        super().__init__(prompt_set, options, made, baseline, trained_length(model), options.batch_tokens)
        self.scorer = AnswerScorer(model, options.batch_tokens)
        prompt_set.check_ids(self.scorer.vocabulary)

    @cached_property
    def model_facts(self) -> ModelFacts:  # type: ignore[override]
        """The facts about the model before any schedule."""
        return fingerprints.describe(self.scorer.model, self.options.path)

    @cached_property
    def facts(self) -> Facts:  # type: ignore[override]
        """The facts that every answer depends on."""
        return {**answer_facts(self.model_facts, self.prompt_set), **fingerprints.arithmetic(self.scorer.model)}

    def work(self, positions: int) -> float:
        return memory.work(self.scorer.model, positions)

    def _ready(self) -> AbstractContextManager[object]:
        return evaluating(self.scorer.model)

    def _scoring(self, tables: HeldTables, prompts: Sequence[Prompt]) -> PromptBatches:
        return PromptBatches(self.scorer, prompts)


def answer_facts(model: ModelFacts, prompt_set: RetrievalPrompts) -> Facts:
    """Returns the facts that the answers of every model depend on."""
    known = {name: model[name] for name in ("weights", "config_sha256", "dtype")}
    return {"kind": "retrieval", **known, "bos": prompt_set.bos, "answering": ANSWERING}


def plan_prompts(prompts: Sequence[Prompt], batch_tokens: int) -> BatchPlan:
    """Plans the prompts of one length as windows, with one scored token for each stored number of a prompt."""

    def shape(number: int) -> tuple[int, ...]:
        """Returns the sizes that prompts of one batch share."""
        prompt, generation = prompts[number], prompts[number].generation
        generated = (len(generation.ids), generation.new_tokens) if generation else ()
        return (prompt.length, len(prompt.questions), *generated)

    sizes, batches = [stored_numbers(prompt) for prompt in prompts], list[Batch]()
    for (positions, questions, *_), alike in groupby(sorted(range(len(prompts)), key=shape, reverse=True), shape):
        feeds = [Feed(number, Window(0, positions, positions - sizes[number])) for number in alike]
        together = max(1, batch_tokens // positions) if questions == 1 else 1
        for start in range(0, len(feeds), together):
            batches.append(Batch(len(batches), tuple(feeds[start : start + together]), positions))
    return BatchPlan(tuple(batches), tuple(sizes))


def prepare(
    checkpoint: Checkpoint, schedules: Schedules, lengths: Sequence[int], depths: str, options: RetrievalOptions,
    here: World,
) -> LoadedRetrieval:  # fmt: skip
    """Prepares a retrieval run: checks everything cheap first, and loads the weights last."""
    notes = Notes.of(options.progress)
    schedules = checkpoint.filled(schedules, check_lengths(lengths)[-1], notes)
    prompt_set = make_prompts(checkpoint.tokenizer(), lengths, depths, options)
    checkpoint.warn(notes)
    return LoadedRetrieval(checkpoint.model(here), prompt_set, schedules, options)
