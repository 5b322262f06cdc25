"""Perplexity against length, for several schedules on the same tokens.

With a static schedule the NLL of a token does not depend on later tokens, so one pass at the longest length also gives
the NLLs at every shorter length. If the rotary tables depend on the length, every length uses its own frozen tables,
and lengths with equal tables share a pass. Sliding windows (a stride) differ from length to length, so each length has
its own pass, with tables frozen at that length even if a document's last window is shorter.

All passes are planned before the first one runs: schedule -> tables at each length -> :class:`Job` -> batches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ...configs.configuration import trained_in
from ...models.rotary_modules import evaluating
from ...output.formatting import markdown
from ..data import documents as data_documents
from ..data.windows import check_lengths, check_stride
from ..metrics.paired import short_length
from ..metrics.stored import Divergence, ModelFacts
from ..parallel.processes import Group, World
from ..scoring import memory
from ..scoring.batches import Batch, BatchPlan, Scored
from ..scoring.executor import Executor
from ..scoring.scorer import Scorer
from ..store import FinishedBatches, Store
from . import fingerprints
from .corpus import Corpus
from .corpus_run import CorpusRun, Job, distinct, refuse_impossible
from .options import PerplexityOptions, Schedules
from .progress import Notes, duration
from .runner import Facts, Task
from .variants import AsTrained, HeldTables, trained_length, variants

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ..data.sources import TextSource
    from .checkpoint import Checkpoint


class PerplexityRun(CorpusRun):
    """A measurement of a loaded model: :meth:`result` returns the complete passes."""

    def __init__(
        self,
        model: PreTrainedModel,
        corpus: Corpus,
        schedules: Schedules,
        options: PerplexityOptions,
    ) -> None:
        made, labelled = variants(model, schedules, Notes.of(options.progress))
        super().__init__(corpus, options, labelled, trained_length(model))
        self.variants = made
        refuse_impossible(options.asks_truncation, corpus.lengths[-1], self.trained_length)
        self.scorer = Scorer(model, options.logits_bytes)
        data_documents.check_ids(corpus.documents, self.scorer.vocabulary, corpus.bos)
        self.batch_tokens = options.batch_tokens or memory.default_batch_tokens(
            self.scorer.model, corpus.lengths[-1], options.logits_bytes
        )

    def dry_run(self) -> DryRun:
        """Plans the run and times one batch, without storing anything.

        Raises:
            RunError: the batch does not fit into memory, or its logits are not finite.
        """
        runner = self._runner(Store(), Group(World()))
        with self._ready():
            jobs = self._taken(runner)[0]
            widest = max(jobs[0].plan.batches, key=lambda batch: (batch.fed, batch.positions))
            with jobs[0].tables.live():
                self._executor.score(widest)
                start = time.perf_counter()
                self._executor.score(widest)
                seconds = time.perf_counter() - start
        passes = [
            {"title": title, "windows": sum(len(each.feeds) for each in batches), "batches": len(batches),
             "tokens": sum(each.fed for each in batches)}
            for title, batches in runner.left_of.items() if batches
        ]  # fmt: skip
        work = sum(each.fed * self.work(each.positions) for each in runner.left)
        seconds *= work / (widest.fed * self.work(widest.positions))
        about = memory.described(self.scorer.model, widest, self.options.logits_bytes)
        return DryRun(passes, about, seconds, widest.fed)

    @cached_property
    def model_facts(self) -> ModelFacts:  # type: ignore[override]
        """The model before any schedule: the "model" part of results.json."""
        with self.variants[0].applied():  # as-is
            return fingerprints.describe(self.scorer.model, self.options.path)

    @cached_property
    def facts(self) -> Facts:  # type: ignore[override]
        """The facts that determine the numbers of every pass, in addition to the pass's own.

        They include the versions of torch and transformers: different kernels or modelling files may round or compute
        differently, so batches of different versions must not be mixed.
        """
        return {
            **self._common_facts,
            **fingerprints.arithmetic(self.scorer.model),
            "logits_bytes": self.options.logits_bytes,
        }

    # --- Implementation for a loaded model ---

    def work(self, positions: int) -> float:
        return memory.work(self.scorer.model, positions)

    def _ready(self) -> AbstractContextManager[object]:
        return evaluating(self.scorer.model)

    @cached_property
    def _executor(self) -> Executor:
        return Executor(self.scorer, self.corpus.documents, self.corpus.bos, self.notes.warn)

    def _scoring(self, tables: HeldTables, bos: int | None) -> Executor:
        if bos == self.corpus.bos:
            return self._executor
        return Executor(self.scorer, self.corpus.documents, bos, self.notes.warn)

    def as_trained(self, length: int) -> HeldTables:
        return AsTrained(self.scorer.model).tables([length])[length]

    def _check(self, first: Batch) -> None:
        self._executor.check(first)

    def _comparing(self, jobs: Sequence[Job]) -> list[Task]:
        """Returns the task of the short-context cost, which compares every schedule with the baseline at one length."""
        length = short_length(self.corpus.lengths, self.trained_length)
        if length is None or not self.options.short_context:
            return []
        at = {job.label: job.tables for job in jobs if length in job.lengths}
        base, plan = at.pop(self.baseline), self._plan(length)
        others = list(at.values())
        return [comparing(base, others, length, plan, self._executor, self.divergences.extend)] if others else []

    def _announce_run(self, jobs: Sequence[Job], compared: Sequence[Task]) -> None:
        """Tells the user the cost of the run."""
        own = distinct(jobs)
        total = sum(job.plan.positions for job in own)
        if self.options.stride is not None:  # without a stride, the cost is obvious
            self.notes.tell(f"{total:,} tokens to feed, in {sum(job.plan.windows for job in own):,} windows")
        for task in compared if compared and compared[0].facts else ():
            fed = (1 + len(task.facts)) * task.plan.positions
            length = short_length(self.corpus.lengths, self.trained_length)
            self.notes.tell(f"the short-context cost at {length:,} takes {fed:,} tokens more ({fed / total:.0%})")
        batches = [batch for job in jobs for batch in job.plan.batches]
        widest = max(batches, key=lambda batch: (batch.fed, batch.positions))  # the largest estimated memory
        self.notes.tell(memory.described(self.scorer.model, widest, self.options.logits_bytes))


def prepare(
    checkpoint: Checkpoint,
    schedules: Schedules,
    source: TextSource,
    lengths: Sequence[int],
    bos: str | int,
    options: PerplexityOptions,
    here: World,
) -> PerplexityRun:
    """Prepares a measurement: validates cheap inputs first, and loads the weights last.

    Raises:
        RopescaleError: an input cannot be read or measured.
    """
    lengths, notes = check_lengths(lengths), Notes.of(options.progress)
    source.refuse_endless(options.max_docs)
    check_stride(options.stride, lengths)
    texts, schedules = source.texts(), checkpoint.filled(schedules, lengths[-1], notes)
    if options.asks_truncation:
        refuse_impossible(options.asks_truncation, lengths[-1], trained_in(checkpoint.config))
    corpus = Corpus(texts, lengths, checkpoint.tokenizer(), bos, options, source)
    checkpoint.warn(notes)
    return PerplexityRun(checkpoint.model(here), corpus, schedules, options)


# --- Dry runs


@dataclass(frozen=True)
class DryRun:
    """The plan of a run, with its memory and time.

    Attributes:
        passes: the passes in order; schedules with the same tables share a pass. Each has a ``title`` (schedule and
            length, or the comparison), and the numbers of ``windows``, ``batches`` (forward passes) and fed ``tokens``,
            including BOS.
        memory: a sentence on the memory of the weights and of a batch.
        seconds: the estimated time in one process, based on a batch that was timed after a warm-up.
        timed: the number of tokens of that batch.
    """

    passes: Sequence[Mapping[str, Any]]
    memory: str
    seconds: float
    timed: int

    def to_dict(self) -> dict[str, object]:
        """Returns the plan as plain data."""
        return asdict(self)

    def to_markdown(self) -> str:
        """Returns a table of the passes, followed by memory and time."""
        total = {name: sum(each[name] for each in self.passes) for name in ("windows", "batches", "tokens")}
        lines = [*self.passes, {"title": "in all", **total}]
        rows = [[each["title"], *(f"{each[name]:,}" for name in total)] for each in lines]
        table = markdown(["pass", "windows", "forward passes", "tokens fed"], rows, right=[1, 2, 3])
        time = f"time: {duration(self.seconds)} in one process, estimated from a batch of {self.timed:,} tokens"
        return f"{table}\n\n{self.memory}\n{time}"


# --- The short-context cost: the change of predictions within the trained length

VALUES = 2
"""Numbers stored per scored token."""


def comparing(
    base: HeldTables,
    others: Sequence[HeldTables],
    length: int,
    plan: BatchPlan,
    executor: Executor,
    finish: Callable[[list[Divergence]], None],
) -> Task:
    """Returns the task that compares schedules with the baseline, which runs once for each batch.

    Schedules with the same tables share their passes. A schedule with the baseline's tables needs no pass.

    Args:
        base, others: the tables of the baseline and of each schedule.
        length: the number of positions of each window.
        plan: the batches of the windows.
        finish: called with all comparisons.
    """
    distinct = {each.rotation: each for each in others if each.rotation != base.rotation}

    def score(batch: Batch, lacking: Sequence[int]) -> list[Scored]:
        live = [each.live for each in distinct.values()]
        return executor.compare(batch, base.live, [live[number] for number in lacking])

    def complete(finished: Sequence[FinishedBatches]) -> None:
        unchanged = [[np.full(size, value, np.float32) for size in plan.sizes] for value in (0.0, 1.0)]
        numbers = {}
        for rotation, done in zip(distinct, finished, strict=True):
            halves = {number: np.split(each.nll, VALUES) for number, each in done.batches.items()}
            numbers[rotation] = [plan.assembled({n: half[row] for n, half in halves.items()}) for row in range(VALUES)]
        # Each schedule feeds the windows once; the baseline's forward passes are added to the first schedule's.
        shares, found = {rotation: 1 if number else 2 for number, rotation in enumerate(distinct)}, []
        for other in others:
            (kl, same), share = numbers.get(other.rotation, unchanged), shares.pop(other.rotation, 0)
            found.append(
                Divergence(
                    schedule=other.variant.label,
                    baseline=base.variant.label,
                    length=length,
                    kl=kl,
                    same=same,
                    forward_passes=share * plan.windows,
                    positions=share * plan.positions,
                )
            )
        finish(found)

    facts = [{"length": length, "divergence": [base.rotation, rotation], "plan": plan.sha256} for rotation in distinct]
    return Task("short-context cost", plan, facts, score, complete, values=VALUES, further_passes=1, nll=False)
