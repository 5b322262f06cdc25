"""Runs the same prompts with every schedule: schedules x lengths x prompts."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...models.rotary_modules import evaluating, unwrapped
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
from .answering import AnswerScorer, stored_numbers, unpack
from .prompt_set import RetrievalOptions, RetrievalPrompts, make_prompts, prompts_sha256
from .prompts import Prompt
from .results import Answer, Retrieval, answer_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ..running.checkpoint import Checkpoint
    from ..running.options import Schedules

ANSWERING = 2
"""The version of answering. It is increased when the same model and prompts would give different answers, so that
stored answers of earlier versions are not used."""


class RetrievalRun(ABC):
    """An interruptible retrieval run: :meth:`result` has the complete schedules and lengths.

    Subclasses return the scorer for given tables and prompts (:meth:`_scoring`).

    Args:
        variants: the labelled schedules.
        baseline: the label of the baseline.
        trained: the trained length, if known.
        model_facts: the "model" part of results.json.
        vocabulary: the number of token ids; None if unknown.

    Attributes:
        title: the title, if this run is part of a larger run, which prints all other notes; else "".
        about: additional facts that the next run in the same folder is compared with.
        facts: the facts that every answer depends on.
        batch_tokens: the maximum number of positions fed together; at least one prompt is fed.
        protocol: additional entries of the "protocol" part of results.json.

    Raises:
        DataError: a prompt has ids that are not in the model's vocabulary.
    """

    def __init__(
        self, prompt_set: RetrievalPrompts, options: RetrievalOptions, variants: Sequence[WithTables], baseline: str,
        trained: int | None, model_facts: ModelFacts, vocabulary: int | None,
    ) -> None:  # fmt: skip
        self.prompt_set, self.options, self.variants, self.baseline = prompt_set, options, variants, baseline
        self.model_facts: ModelFacts = {**model_facts, "trained_length": trained}
        if vocabulary is not None:
            prompt_set.check_ids(vocabulary)
        known = {name: model_facts[name] for name in ("weights", "config_sha256", "dtype")}
        self.facts: Facts = {"kind": "retrieval", **known, "bos": prompt_set.bos, "answering": ANSWERING}
        self.title, self.batch_tokens, self.about, self.protocol = "", 1, dict[str, object](), dict[str, object]()
        self.answers: list[Answer] = []
        self.tables: dict[tuple[str, int], str] = {}

    @abstractmethod
    def _scoring(self, tables: HeldTables, prompts: Sequence[Prompt]) -> ScoresBatches:
        """Returns the scorer for given tables and prompts."""

    def _ready(self) -> AbstractContextManager[object]:
        """Returns a context in which the scorer can run."""
        return nullcontext()

    def work(self, positions: int) -> float:
        """Returns the work per token in a prompt of ``positions``, in any unit."""
        return 1.0

    @property
    def finished(self) -> str:
        """The number of completed parts, as text; "" if there is none."""
        return f"{len(self.tables)} finished parts" if self.tables else ""

    def run(self, store: Store | None = None, group: Group | None = None) -> None:
        """Asks all prompts under every schedule. :attr:`answers` contains all complete parts, even if the run is
        interrupted.

        Args:
            store: the store of finished batches, which are not asked again.
            group: the processes that share the prompts; :attr:`answers` is complete only in the first one.
        """
        prompts, notes = self.prompt_set.prompts, Notes.of(self.options.progress)
        asked = {"lengths": list(prompts), **self.prompt_set.protocol, "source": self.prompt_set.source}
        sizes = {"batch_tokens": self.options.batch_tokens}
        about = {"kind": "retrieval", "facts": self.facts, **sizes, **asked, **self.about}
        runner = Runner(self.facts, store or Store(), group or Group(World()), notes, self.work)
        plans = {length: plan_prompts(of_length, self.batch_tokens) for length, of_length in prompts.items()}
        with self._ready():
            held = [variant.tables(prompts) for variant in self.variants]
            jobs = [Job(tables, (length,), plans[length]) for each in held for length, tables in each.items()]
            runner.take([self._task(job) for job in jobs])
            if not self.title:
                runner.announce(about)
            runner.run(about)

    def planned(self) -> dict[str, Any]:
        """Returns the part of results.json that is known before the run."""
        cells = itertools.product(self.variants, self.prompt_set.prompts)
        rows = [{"schedule": variant.label, "length": length} for variant, length in cells]
        return {**{name: getattr(self.result(), name) for name in ("model", "data", "protocol")}, "rows": rows}

    def result(self) -> Retrieval:
        """Returns the result of all complete parts."""
        return Retrieval(
            model=self.model_facts,
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

    def _task(self, job: Job) -> Task:
        [length] = job.lengths
        prompts = self.prompt_set.prompts[length]

        def finish(stored: Sequence[np.ndarray]) -> None:
            for number, (prompt, numbers) in enumerate(zip(prompts, stored, strict=True)):
                scores, ids = unpack(prompt, numbers)
                written = str(self.prompt_set.tokenizer.decode(ids, skip_special_tokens=True))
                self.answers.append(answer_of(job.label, length, number, prompt, scores, written))
            self.tables[job.label, length] = job.tables.table_sha256

        scorer = self._scoring(job.tables, prompts)
        return replace(task_of(self.title or job.label, job, scorer, finish, asked=prompts_sha256(prompts)), nll=False)


class LoadedRetrieval(RetrievalRun):
    """The retrieval run of a loaded model.

    Args:
        about: the "model" part of results.json; None computes it.
    """

    def __init__(
        self, model: PreTrainedModel, prompt_set: RetrievalPrompts, schedules: Schedules, options: RetrievalOptions,
        about: ModelFacts | None = None,
    ) -> None:  # fmt: skip
        made, baseline = variants(model, schedules, Notes.of(options.progress))
        self.model = unwrapped(model)
        with made[0].applied():  # as-is
            about = about or fingerprints.describe(self.model, options.path)
        vocabulary, _ = memory.embedding_shape(self.model)
        super().__init__(prompt_set, options, made, baseline, trained_length(model), about, vocabulary)
        self.facts = {**self.facts, **fingerprints.arithmetic(self.model)}
        self.batch_tokens = options.batch_tokens

    def _scoring(self, tables: HeldTables, prompts: Sequence[Prompt]) -> AnswerScorer:
        return AnswerScorer(self.model, prompts)

    def _ready(self) -> AbstractContextManager[object]:
        return evaluating(self.model)

    def work(self, positions: int) -> float:
        return memory.work(self.model, positions)


def plan_prompts(prompts: Sequence[Prompt], batch_tokens: int) -> BatchPlan:
    """Plans the prompts of one length as windows that have as many scored tokens as a prompt has stored numbers."""

    def shape(number: int) -> tuple[int, ...]:
        """Returns the sizes that all prompts of a batch have in common."""
        prompt = prompts[number]
        generated = (len(prompt.generation.ids), prompt.new_tokens) if prompt.generation else ()
        return (prompt.length, len(prompt.questions), *generated)

    sizes, batches = [stored_numbers(prompt) for prompt in prompts], list[Batch]()
    for (positions, questions, *_), alike in itertools.groupby(
        sorted(range(len(prompts)), key=shape, reverse=True), shape
    ):
        feeds = [Feed(number, Window(0, positions, positions - sizes[number])) for number in alike]
        together = max(1, batch_tokens // positions) if questions == 1 else 1
        for start in range(0, len(feeds), together):
            batches.append(Batch(len(batches), tuple(feeds[start : start + together]), positions))
    return BatchPlan(tuple(batches), tuple(sizes))


def prepare(
    checkpoint: Checkpoint, schedules: Schedules, lengths: Sequence[int], depths: str, options: RetrievalOptions,
    here: World,
) -> LoadedRetrieval:  # fmt: skip
    """Prepares a retrieval run: validates cheap inputs first, and loads the weights last."""
    notes = Notes.of(options.progress)
    schedules = checkpoint.filled(schedules, check_lengths(lengths)[-1], notes)
    prompt_set = make_prompts(checkpoint.tokenizer(), lengths, depths, options)
    checkpoint.warn(notes)
    return LoadedRetrieval(checkpoint.model(here), prompt_set, schedules, options)
