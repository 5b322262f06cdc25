"""Plans, passes, truncation and the result of a measurement with a loaded model or with servers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from ...errors import DataError, RopescaleError
from ..data import chats
from ..data.windows import prefix, sliding, truncated
from ..metrics import METRICS, OPTIONS
from ..metrics.paired import short_length
from ..metrics.stored import Divergence, ModelFacts, Pass, Tables, Truncation, positions_of
from ..metrics.verdicts import too_few
from ..parallel.processes import Group, World
from ..results.result import Result
from ..scoring.batches import Batch, BatchPlan, Scored, plan_pass
from ..scoring.scorer import SCORING
from ..statistics.intervals import PERCENT
from ..store import FinishedBatches, Store
from . import fingerprints
from .corpus import Corpus
from .options import PerplexityOptions
from .progress import Notes
from .runner import Facts, Runner, Task
from .variants import HeldPass, HeldTables, WithTables, names_for, passes_of


@dataclass(frozen=True)
class Job(HeldPass):
    """One pass over every document under one set of rotary tables.

    Attributes:
        plan: the batches of the pass.
    """

    plan: BatchPlan

    @property
    def label(self) -> str:
        """The schedule's label."""
        return self.tables.variant.label

    @property
    def key(self) -> tuple[str, str]:
        """The hashes that, for a given model and text, determine the numbers."""
        return self.tables.rotation, self.plan.sha256


class ScoresBatches(Protocol):
    """A scorer of batches: the executor of a loaded model, or a server."""

    def score(self, batch: Batch) -> Scored:
        """Returns the NLLs of a batch's scored tokens."""
        ...


def task_of(
    title: str, job: Job, executor: ScoresBatches, finish: Callable[[list[np.ndarray]], None], **facts: object
) -> Task:
    """Returns the task that scores a job.

    Args:
        finish: called with the losses of each document.
        facts: further facts that determine the losses, in addition to the length, the tables and the plan.
    """
    tables, plan = job.tables, job.plan

    def score(batch: Batch, lacking: Sequence[int]) -> list[Scored]:
        scored = executor.score(batch)
        tables.check()  # so that scores with changed tables are not stored
        return [scored]

    def complete(finished: Sequence[FinishedBatches]) -> None:
        finish(plan.assembled({number: each.nll for number, each in finished[0].batches.items()}))

    about = {"length": job.lengths[-1], "rotation": tables.rotation, "plan": plan.sha256, **facts}
    # A server scores several batches at once, and another server may continue a run.
    stream, confirm = (getattr(executor, name, None) for name in ("stream", "confirm"))
    return Task(title, plan, [about], score, complete, tables.live, stream=stream, confirm=confirm)


class CorpusRun(ABC):
    """An interruptible measurement of a corpus: :meth:`result` returns the complete passes.

    Subclasses compute the losses with a loaded model or servers: they return the scorer for given tables
    (:meth:`_scoring`), and the model's training tables (:meth:`as_trained`).

    Attributes:
        variants: the labelled schedules to measure.
        baseline: the label of the baseline.
        trained_length: the model's trained context, if known.
        title: the title, if this measurement is a round of a larger run, which prints all other notes; else "".
        about: additional facts that the next run in the same folder is compared with.
        further_positions: the number of positions that the larger run feeds outside this round, which are added to
            the cost that truncation may have.
        protocol: additional entries of the "protocol" part of results.json.
        facts: the facts that determine the numbers of all passes; each pass has additional facts.
        model_facts: the "model" part of results.json.
        batch_tokens: the maximum number of positions in a batch.
    """

    variants: Sequence[WithTables]
    facts: Facts
    model_facts: ModelFacts

    def __init__(self, corpus: Corpus, options: PerplexityOptions, baseline: str, trained: int | None) -> None:
        self.corpus, self.options, self.notes = corpus, options, Notes.of(options.progress)
        self.baseline, self.trained_length = baseline, trained
        self.batch_tokens = 1
        self.title, self.further_positions = "", 0
        self.about, self.protocol = dict[str, object](), dict[str, object]()
        self.passes: list[Pass] = []
        self.divergences: list[Divergence] = []
        self.truncation: Truncation | None = None
        self._stride: int | None = None  # truncation's stride: the last run's, then this run's
        self._plans: dict[int, BatchPlan] = {}
        self._figures: Tables = {}

    def run(self, store: Store | None = None, group: Group | None = None) -> None:
        """Measures every schedule. :attr:`passes` contains the complete passes, even after an interruption.

        Args:
            store: the store of finished batches.
            group: the processes that share the work; :attr:`passes` is complete only in the first one.
        """
        store, group = store or Store(), group or Group(World())
        self.batch_tokens, self._stride = group.from_leader(self._as_before(store.last))
        runner = self._runner(store, group)
        with self._ready():
            jobs, compared, last, told = self._taken(runner)
            if not self.title:
                if special := self.corpus.special:
                    self.notes.tell(
                        f"{special:,} tokens of the text are special tokens, which may mark the start or end of text; "
                        "split_special_tokens encodes them as ordinary text"
                    )
                to_run = runner.announce(self._about)
                if told and (to_run or not last):
                    self.notes.tell(told)
                few = too_few(len(self.corpus.windows)) if len(self.variants) > 1 else ""
                if to_run and few:
                    self.notes.tell(f"{few}: differences are printed without one")
                if to_run:
                    self._announce_run(jobs, compared)
            if runner.left:
                self._check(runner.left[0])
            runner.run(self._about)

    def _runner(self, store: Store, group: Group) -> Runner:
        part = "in this round" if self.title else "to go"
        return Runner(self.facts, store, group, self.notes, self.work, part)

    # --- Implemented for a loaded model and for servers ---

    def work(self, positions: int) -> float:
        """Returns the work per token in a window of ``positions``, in any unit."""
        return 1.0

    def _ready(self) -> AbstractContextManager[object]:
        """Returns a context in which the scorer can run."""
        return nullcontext()

    @abstractmethod
    def _scoring(self, tables: HeldTables, bos: int | None) -> ScoresBatches:
        """Returns the scorer for given tables, which feeds the id ``bos``, if any, before every window."""

    @abstractmethod
    def as_trained(self, length: int) -> HeldTables:
        """Returns the model's training tables.

        Raises:
            RopescaleError: these tables are not available.
        """

    def _comparing(self, jobs: Sequence[Job]) -> list[Task]:
        """Returns the tasks that measure the short-context cost."""
        return []

    @abstractmethod
    def _announce_run(self, jobs: Sequence[Job], compared: Sequence[Task]) -> None:
        """Tells the user what the run costs, or which metrics it skips."""

    @abstractmethod
    def _check(self, first: Batch) -> None:
        """Checks that the first batch can be scored."""

    # --- planning ---

    def _taken(self, runner: Runner) -> tuple[list[Job], list[Task], list[Task], str]:
        """Adds all tasks to a runner, and returns the jobs, the tasks of the short-context cost and of truncation, and
        a note on truncation."""
        jobs: list[Job] = []
        for variant in self.variants:
            held = variant.tables(self.corpus.lengths)  # raises an error if the schedule does not fit
            self._figures |= {tables.table_sha256: tables.figures for tables in held.values()}
            if self.options.stride is not None:  # each length has windows of its own
                jobs += [Job(tables, (length,), self._plan(length)) for length, tables in held.items()]
            else:  # as few passes as the tables allow
                jobs += [Job(each.tables, each.lengths, self._plan(each.lengths[-1])) for each in passes_of(held)]
        compared = self._comparing(jobs)
        rest = self.further_positions + sum(job.plan.positions for job in distinct(jobs))
        planned, told = plan_truncation(
            self.corpus, self.trained_length, self.as_trained, rest, self.batch_tokens, self._stride
        )
        last = []
        if planned:
            self._stride, title = planned.stride, f"truncation to {planned.lengths[-1]:,}"
            scoring, finish = self._scoring(planned.tables, self.corpus.bos), partial(self._finish_truncation, planned)
            last = [task_of(title, planned, scoring, finish, truncation=planned.stride)]
        tasks = []
        for job in jobs:
            title = self.title or f"{job.label} at {job.lengths[-1]:,}"
            tasks.append(task_of(title, job, self._scoring(job.tables, self.corpus.bos), partial(self._finish, job)))
        runner.take([*tasks, *compared, *last])
        return jobs, compared, last, told

    # --- the result ---

    @property
    def finished(self) -> str:
        """The number of completed passes, as text, or ""."""
        return f"{len(self.passes)} finished passes" if self.passes else ""

    def planned(self) -> dict[str, Any]:
        """Returns the part of results.json that is known before the run."""
        options, known = self.options, self.result()
        lengths, trained = self.corpus.lengths, known.trained_length
        rows = [{"schedule": each.label, "length": length} for each in self.variants for length in lengths]
        short = options.short_context and short_length(lengths, trained) is not None and len(self.variants) > 1
        return {
            "model": known.model,
            "data": known.data,
            "protocol": known.protocol,
            "rows": rows,
            "paired": [{"kl": 0.0}] if short else [],
            **{metric.key: metric.is_planned(options.of_metrics) for metric in METRICS if metric.called},
            "truncation": options.truncation is not False and trained is not None and lengths[-1] > trained,
        }

    def result(self) -> Result:
        """Returns everything measured so far."""
        options, corpus, trained = self.options, self.corpus, self.trained_length
        return Result(
            model=self.model_facts,
            data=corpus.facts,
            protocol={
                "name": "ropescale",
                "mode": "prefix" if options.stride is None else "sliding",
                "bos": corpus.bos_option,
                "stride": options.stride,
                **({} if options.stride else {"windows": options.windows, "budget_tokens": options.budget}),
                **({} if options.score == chats.ALL else {"score": options.score}),
                **(self.truncation.facts if self.truncation else {}),
                "seed": options.seed,
                **{name: options.of_metrics[name] for name, option in OPTIONS.items() if option.read is None},
                **names_for(self.variants),
                **self.protocol,
                "interval": f"{corpus.interval}, {PERCENT}",
                "batch_tokens": self.batch_tokens,
            },
            versions=fingerprints.versions(),
            passes=self.passes,
            documents=corpus.documents,
            windows=corpus.windows,
            bos=corpus.has_bos,
            baseline=self.baseline,
            trained_length=trained,
            tables={each.table_sha256: self._figures[each.table_sha256] for each in self.passes},
            divergences=self.divergences,
            options=dict(options.of_metrics),
            truncation=self.truncation,
        )

    @property
    def _common_facts(self) -> Facts:
        """The facts that determine the numbers of a loaded model and of servers."""
        return {
            **{name: self.model_facts[name] for name in ("weights", "config_sha256", "dtype")},
            "text": self.corpus.sha256,
            "tokens": fingerprints.tokens_sha256(self.corpus.documents),
            "bos": self.corpus.bos,
            "stride": self.options.stride,
            "scoring": SCORING,
        }

    @property
    def _about(self) -> Facts:
        """The facts that the next run in the same folder is compared with."""
        return {
            "facts": self.facts,
            "lengths": list(self.corpus.lengths),
            "batch_tokens": self.batch_tokens,
            "schedules": [variant.label for variant in self.variants],
            **({"truncation_stride": self._stride} if self._stride else {}),
            **self.about,
        }

    def _as_before(self, last: Facts) -> tuple[int, int | None]:
        """Returns the last run's batch size and truncation stride if its batches can be reused, else this run's."""
        if last.get("facts") != self.facts:
            return self.batch_tokens, None
        size, stride = last.get("batch_tokens"), last.get("truncation_stride")
        same_lengths = last.get("lengths") == list(self.corpus.lengths)
        return (
            size if self.options.batch_tokens is None and isinstance(size, int) else self.batch_tokens,
            stride if same_lengths and isinstance(stride, int) else None,
        )

    def _plan(self, length: int) -> BatchPlan:
        if length not in self._plans:
            tokens = [len(document.ids) for document in self.corpus.documents]
            stride, bos = self.options.stride, self.corpus.has_bos
            self._plans[length] = plan_pass(tokens, length, stride, bos, self.batch_tokens, sliding)
        return self._plans[length]

    def _finish(self, job: Job, nll: list[np.ndarray]) -> None:
        """Adds a completely scored pass to the results."""
        fed = 0 if any(each.key == job.key for each in self.passes) else 1
        self.passes.append(
            Pass(
                schedule=job.label,
                table_sha256=job.tables.table_sha256,
                lengths=job.lengths,
                nll=nll,
                forward_passes=fed * job.plan.windows,
                positions=fed * job.plan.positions,
                key=job.key,
            )
        )

    def _finish_truncation(self, job: TruncationJob, nll: list[np.ndarray]) -> None:
        self.truncation = Truncation(job.lengths[-1], job.stride, job.tables.table_sha256, nll)


def distinct(jobs: Iterable[Job]) -> list[Job]:
    """Returns the distinct jobs; schedules with the same tables share a job."""
    return list({job.key: job for job in jobs}.values())


# --- Truncation: the unchanged model on only the last tokens, up to its trained length
# Truncation uses the model's training tables, and windows of the trained length L0, a stride apart, with BOS if the
# schedules get BOS. Each window scores its last tokens. Together, the windows score exactly the tokens at positions
# from L0 on in the measured windows. A smaller stride gives each token more context, at least L0 - stride, and takes
# more forward passes.

SHARES = (16, 8, 4, 2)
"""The divisors of the trained length that give the candidate strides. The smallest stride that costs at most as much as
all other passes is used."""


def refuse_impossible(asked: str, longest: int, trained: int | None) -> None:
    """Raises an error if truncation is requested and cannot be measured.

    Args:
        asked: the option that requests truncation, or "".
        longest: the largest measured length.
        trained: the trained length, if known.

    Raises:
        DataError: the trained length is unknown, or no length exceeds it.
    """
    if asked and trained is None:
        raise DataError(f"{asked} is given, but the model's trained length is unknown; drop {asked}", asked)
    if asked and trained is not None and longest <= trained:
        raise DataError(
            f"{asked} is given, but no length is beyond the {trained:,} tokens that the model was trained with; give "
            f"a longer one, or drop {asked}",
            asked,
        )


@dataclass(frozen=True)
class TruncationJob(Job):
    """The pass of truncation, whose length is the trained length.

    Attributes:
        stride: the stride of the windows.
    """

    stride: int


def plan_truncation(
    corpus: Corpus,
    trained: int | None,
    as_trained: Callable[[int], HeldTables],
    rest: int,
    batch_tokens: int,
    before: int | None = None,
) -> tuple[TruncationJob | None, str]:
    """Plans truncation at the requested stride, at the last run's stride, or at the smallest candidate stride that
    costs at most as much as all other passes.

    Args:
        trained: the trained length, if known.
        as_trained: returns the model's training tables at a length.
        rest: the number of positions that all other passes feed.
        before: the stride of the last run with the same facts, if any; another stride could not reuse its batches.

    Returns:
        The plan, or None if truncation is skipped; and a note for the user, or "".

    Raises:
        DataError: the requested truncation is impossible, or the stride leaves a token without context.
    """
    options, longest, asked = corpus.options, corpus.lengths[-1], corpus.options.asks_truncation
    refuse_impossible(asked, longest, trained)
    if options.truncation is False or options.stride is not None or trained is None or longest <= trained:
        return None, ""
    known = options.truncation_stride or before
    if known is not None and known >= trained:
        raise DataError(
            f"truncation_stride {known} leaves a token without context in windows of the trained {trained:,} "
            f"positions; use 1 to {trained - 1}",
            "truncation_stride",
        )
    strides = [known] if known else [max(1, trained // share) for share in SHARES]
    costs = {each: positions_of([longest - trained] * len(corpus.documents), trained, each) for each in strides}
    stride = next((each for each in strides if costs[each] <= rest), strides[-1])
    fed = costs[stride]
    if known is None and fed > rest and options.truncation is None:
        return None, (
            f"truncation is skipped: it would feed {fed:,} tokens, {fed / rest:.0%} of what all other passes feed; "
            "request truncation to measure it"
        )
    try:
        tables = as_trained(trained)
    except RopescaleError as error:
        if asked:
            message = f"{asked} is given, but truncation cannot be measured: {error}"
            raise DataError(message, asked, *error.fields) from error
        return None, f"truncation is skipped: {error}"

    stop = prefix(longest, corpus.has_bos).stop  # of each document, up to the longest length
    plan = plan_pass([stop] * len(corpus.documents), trained, stride, corpus.has_bos, batch_tokens, truncated)
    told = f"truncation at stride {stride:,} takes {fed:,} tokens more ({fed / rest:.0%})"
    return TruncationJob(tables, (trained,), plan, stride), told
