"""Runs tasks: scores planned batches in one or several processes, and stores each batch as soon as it is finished.

:mod:`ropescale.evals.running.perplexity` and :mod:`ropescale.evals.retrieving.retrieval_run` define the tasks, mostly
one per :class:`Job`. The runner finds finished batches, distributes the remaining ones, scores and stores them, and
merges the batches of all processes.
"""

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from math import prod
from pathlib import Path
from typing import Protocol, TypeVar, cast

from ...errors import CheckpointError, RopescaleError, RunError
from ...output.formatting import listed
from ..backends.schedules import HeldTables
from ..checking import Parsed
from ..metrics.stored import Measured
from ..parallel.processes import Group
from ..progress import Notes, Progress
from ..results.folder import refuse_loss
from ..results.saving import Writable
from ..scoring.batches import Arrays, Batch, BatchPlan, Finished, Form, ScoresBatches, ScoresTexts, cost, owners
from ..store import Facts, FinishedBatches, Store, key_of, opened


@dataclass(frozen=True)
class Task:
    """Batches of a plan to score in one or several passes.

    Attributes:
        title: the title of the progress; consecutive tasks with the same title share a bar.
        plan: the batches.
        facts: for each pass, the facts that determine its numbers, in addition to those of the run.
        form: returns the form of a batch's numbers. If they include "nll", progress shows the perplexity.
        finish: called with each pass's finished batches by their numbers, once all are finished.
        scorer: scores the batches of a single pass.
        tables: the tables that are live meanwhile; None for those that the model has.
        compare: used instead of a scorer: scores a batch for the passes that lack it, given by their indexes.
        further_passes: the number of forward passes of a batch in addition to one per pass.
    """

    title: str
    plan: BatchPlan
    facts: Sequence[Facts]
    form: Callable[[Batch], Form]
    finish: Callable[..., None]
    scorer: ScoresBatches | None = None
    tables: HeldTables | None = None
    compare: Callable[[Batch, Sequence[int]], Sequence[Arrays]] | None = None
    further_passes: int = 0


@dataclass(frozen=True)
class Job:
    """One pass over every document under one set of rotary tables.

    Attributes:
        lengths: the lengths that the pass measures, ascending; its windows have the last one.
        plan: the batches of the pass.
        stride: the stride of truncation's windows; 0 for other passes.
    """

    tables: HeldTables
    lengths: tuple[int, ...]
    plan: BatchPlan
    stride: int = 0

    @property
    def label(self) -> str:
        """The schedule's label."""
        return self.tables.variant.label

    @property
    def key(self) -> tuple[str, str]:
        """The hashes that, for a given model and text, determine the numbers."""
        return self.tables.rotation, self.plan.sha256


def task_of(
    title: str,
    job: Job,
    scorer: ScoresBatches,
    finish: Callable[[Finished], None],
    form: Callable[[Batch], Form],
    **facts: object,
) -> Task:
    """Returns the task that scores a job.

    Args:
        finish: called with the finished batches by their numbers.
        form: returns the form of a batch.
        facts: further facts that determine the numbers, in addition to the length, the tables and the plan.
    """
    about = {"length": job.lengths[-1], "rotation": job.tables.rotation, "plan": job.plan.sha256, **facts}
    return Task(title, job.plan, [about], form, finish, scorer, job.tables)


@dataclass
class _Assigned:
    """A task with its finished batches, and the batches assigned to this process."""

    task: Task
    finished: list[FinishedBatches]
    own: list[Batch] = field(default_factory=list)

    def lacking(self, batch: Batch) -> list[int]:
        """Returns the indexes of the passes that lack a batch."""
        return [number for number, done in enumerate(self.finished) if batch.number not in done.batches]

    def passes(self, batch: Batch) -> int:
        """Returns the number of forward passes that a batch still needs."""
        return self.task.further_passes + len(self.lacking(batch))

    def finish(self) -> None:
        """Hands on the finished batches of all passes."""
        self.task.finish(*(done.batches for done in self.finished))


class Runner:
    """The runner of one measurement's tasks.

    Args:
        facts: the facts that determine all numbers of the measurement.
        store: the store of finished batches.
        group: the processes that share the work.
        notes: receives notes for the user.
    """

    def __init__(self, facts: Facts, store: Store, group: Group, notes: Notes) -> None:
        self.facts = facts
        self.store = store
        self.group = group
        self.notes = notes
        self._tasks: list[_Assigned] = []
        self._fed = 0

    def take(self, tasks: Sequence[Task]) -> None:
        """Reads the finished batches of the tasks in all processes, and distributes the remaining batches.

        Raises:
            RunError: the processes have different tasks, because their files, versions or tables differ.
        """
        planned = (self.facts, [task.facts for task in tasks])
        if any(other != planned for other in self.group.from_all(planned)):
            raise RunError("the processes have different tasks; give all of them the same files and versions")
        self._tasks = []
        for task in tasks:
            finished = [self.store.batches({**self.facts, **facts}, task.plan, task.form) for facts in task.facts]
            self._tasks.append(_Assigned(task, finished))
        self._exchange()
        self._share_out()

    def go_on(self, texts: ScoresTexts) -> None:
        """Lets the scorer split batches as earlier runs of the same facts did, and stores how it splits them."""
        key = key_of({**self.facts, "limits": True})
        own = [(positions, int(fitting)) for positions, fitting in self.store.records(key)]
        found = {limit for each in self.group.from_all(own) for limit in each}

        def keep(positions: int, fitting: int) -> None:
            self.store.put(key, positions, b"%d" % fitting)

        texts.go_on(list(found) if self.left else [], keep)

    @property
    def left(self) -> list[Batch]:
        """The remaining batches of this process, each repeated for every forward pass that it needs."""
        return [batch for each in self._tasks for batch in each.own for _ in range(each.passes(batch))]

    @property
    def tokens_left(self) -> int:
        """The number of tokens that this process is going to score or generate."""
        total = 0
        for each in self._tasks:
            for batch in each.own:
                form = each.task.form(batch)
                total += each.passes(batch) * sum(prod(form[name][1]) for name in ("nll", "ids") if name in form)
        return total

    def announce(self, about: Facts) -> bool:
        """Tells the user about finished batches or changes since the last run, and returns whether any batch is left.

        Args:
            about: the facts of this run, which the next run in the same folder is compared with.
        """
        plans = {stored.key: (stored, each.task.plan) for each in self._tasks for stored in each.finished}
        total = sum(len(plan.batches) for _, plan in plans.values())
        done = sum(batch.number in stored.batches for stored, plan in plans.values() for batch in plan.batches)
        last = self.store.last
        if done == total:
            self.notes.tell(f"all {total} batches are done already; nothing is run")
        elif done:
            self.notes.tell(f"resuming: {done} of {total} batches are done")
        elif last and (changed := _changes(last, about)):
            self.notes.tell(f"starting a new run, because this changed: {changed}; the old batches stay in resume/")
        return done < total

    def run(self, about: Facts, whole: Progress | None = None) -> None:
        """Scores the remaining batches. The first process calls ``finish`` of each task once the task is complete.

        Args:
            about: as for :meth:`announce`.
            whole: the progress of a larger run that these tasks are a part of.
        """
        if self.group.world.leads:
            self.store.begin(about)
        if self.left:
            self._confirm()
        began = time.perf_counter()
        several = len({each.task.title for each in self._tasks if each.own}) > 1
        fed = sum(batch.fed for batch in self.left)
        own = Progress("whole run", fed, self.notes.shown and several and not whole, line=1)
        whole = whole or own
        try:
            with own, closing(self._begun(whole)) as tasks:
                for each, progress in tasks:
                    task = each.task
                    if task.compare is not None:
                        for batch in each.own:
                            self._put(each, batch, task.compare(batch, each.lacking(batch)), progress, whole)
                    elif task.scorer is not None:
                        for batch, arrays in task.scorer.stream(each.own):
                            self._put(each, batch, [arrays], progress, whole)
        finally:
            if self._fed:
                seconds = time.perf_counter() - began
                self.notes.tell(f"{self._fed:,} tokens in {seconds:,.1f} s, {self._fed / seconds:,.0f} tokens/s")
        if self.group.world.size > 1:
            self._exchange()
            for each in self._tasks if self.group.world.leads else []:
                each.finish()

    # --- sharing ---

    def _exchange(self) -> None:
        """Adds the finished batches of all processes, without storing them, because each process stores its own."""
        finished = [done for each in self._tasks for done in each.finished]
        for found in self.group.from_all({done.key: done.batches for done in finished}):
            for done in finished:
                done.batches |= found.get(done.key, {})

    def _share_out(self) -> None:
        """Assigns each remaining batch to a team. If tasks share a pass, only the first one gets the batches."""
        claimed: set[str] = set()
        left: list[tuple[_Assigned, Batch]] = []
        for each in self._tasks:
            keys = {done.key for done in each.finished}
            left += [(each, batch) for batch in each.task.plan.batches if each.lacking(batch) and keys - claimed]
            claimed |= keys
        world = self.group.world
        costs = [each.passes(batch) * cost(batch) for each, batch in left]
        for (each, batch), owner in zip(left, owners(costs, world.teams), strict=True):
            if owner == world.rank // world.team:
                each.own.append(batch)

    # --- running ---

    def _confirm(self) -> None:
        """Checks that the scorers give what they gave before an interruption."""
        for each in self._tasks:
            if each.task.scorer and (batches := each.finished[0].batches):
                first = min(batches)
                each.task.scorer.confirm(each.task.plan.batches[first], batches[first])

    def _begun(self, whole: Progress) -> Generator[tuple[_Assigned, Progress], None, None]:
        """Yields each task with the progress of its title, while the task's tables are live."""
        for title, group in groupby(self._tasks, key=lambda each: each.task.title):
            tasks = list(group)
            total = sum(batch.fed for each in tasks for batch in each.own)
            with Progress(title, total, self.notes.shown and total > 0, whole) as progress:
                for each in tasks:
                    self.store.write_parts()  # not after the last task, when the whole result is written
                    tables = each.task.tables
                    with tables.live() if tables is not None and each.own else nullcontext():
                        yield each, progress
                    if self.group.world.size == 1:
                        each.finish()

    def _put(
        self, each: _Assigned, batch: Batch, scored: Sequence[Arrays], progress: Progress, whole: Progress
    ) -> None:
        """Stores the numbers of a batch for each pass that lacks it, unless the tables have changed."""
        if each.task.tables is not None:
            each.task.tables.check()
        fed = each.passes(batch) * batch.fed
        for number, numbers in zip(each.lacking(batch), scored, strict=True):
            each.finished[number].put(batch.number, numbers)
        self._fed += fed
        progress.add(batch.fed, scored[0].get("nll"))
        whole.add(fed)


R = TypeVar("R", bound=Writable, covariant=True)


class Measurement(Protocol[R]):
    """A resumable measurement."""

    notes: Notes

    @property
    def finished(self) -> str:
        """The number of complete parts, such as ``2 finished passes``, or ""."""
        ...

    def planned(self) -> Parsed:
        """Returns the part of results.json that is known before the run."""
        ...

    def run(self, store: Store, group: Group) -> None:
        """Runs the batches that are not in the store."""
        ...

    def result(self) -> R:
        """Returns the result of the complete parts."""
        ...


class NotWritten(CheckpointError):
    """A result that cannot be written; ``result`` has it."""

    def __init__(self, cause: RopescaleError, result: Writable) -> None:
        super().__init__(str(cause), *cause.fields)
        self.result = result


def carry_out(
    measurement: Measurement[R],
    folder: Path | None,
    group: Group,
    fresh: bool = False,
    force: bool = False,
    file: Path | None = None,
) -> R:
    """Runs a measurement, and writes the result into ``folder`` if given, or into ``file``.

    An interrupted run writes the result of its complete parts; in one process a running one does so once a minute, in
    case that it is killed.

    Args:
        fresh: discard the folder's finished batches.
        group: the processes that share the work; only the first one gets a complete result.
        force: replace results even if they are of another text or model, or have more schedules, lengths or metrics.

    Raises:
        CheckpointError: the folder contains more results or results of another text or model; raised before anything
            is run.
        NotWritten: the result cannot be written.
    """
    if folder is not None:
        refuse_loss(folder, measurement.planned(), force)
    write = partial(_write_parts, measurement, folder, force) if folder and group.world.leads else None
    with nullcontext(Store()) if folder is None else opened(folder, fresh, group, write) as store:
        try:
            measurement.run(store, group)
        except BaseException:  # for Ctrl-C, logits that are not finite, or missing memory: keep hours of finished work
            if folder and group.world.leads:
                _keep(measurement, store, folder, force)
            raise
        result = measurement.result()
        if folder and group.world.leads:
            try:
                result.save(file or folder, force=force)
            except RopescaleError as error:
                raise NotWritten(error, result) from error
    return result


def _keep(measurement: Measurement[Writable], store: Store, folder: Path, force: bool) -> None:
    """Writes the result of the complete parts of an interrupted run, and tells the user about finished batches."""
    if not store.finished:
        return
    written = _write_parts(measurement, folder, force)
    tables = f", and the tables of the {written}" if written else ""
    measurement.notes.tell(
        f"the run stopped; {store.finished} finished batches are kept in {folder}{tables}; run the same command to "
        "continue"
    )


def _write_parts(measurement: Measurement[Writable], folder: Path, force: bool) -> str:
    """Writes the result of the complete parts, and returns their number in words; "" if nothing is written."""
    finished = measurement.finished
    if finished:
        with suppress(Exception):  # the disk is full, the folder contains more results: the run itself matters more
            result = measurement.result()
            if isinstance(result, Measured):
                result = replace(result, unfinished=_NOT_WHOLE.format(finished))
            result.save(folder, force=force)
            return finished
    return ""


_NOT_WHOLE = "This run is not whole: it has {} so far. Repeat its command to finish it."


def _changes(last: Facts, about: Facts) -> str:
    """Lists the names of the facts that differ from those of the last run in the same folder."""
    before = {**last, **cast(Facts, last.get("facts", {}))}
    now = {**about, **cast(Facts, about.get("facts", {}))}
    names = [name for name in now if name not in ("facts", "schedules") and before.get(name) != now[name]]
    return listed([_NAMES.get(name, name.replace("_", " ")) for name in names])


_NAMES = {"config_sha256": "configuration"}
