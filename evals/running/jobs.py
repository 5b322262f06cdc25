"""A pass over every document under one set of rotary tables, and the task that scores it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..backends.base import ScoresBatches
from ..backends.tables import HeldPass
from ..scoring.batches import Arrays, Batch, BatchPlan, Form
from ..store import FinishedBatches
from .runner import Task


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


def distinct(jobs: Iterable[Job]) -> list[Job]:
    """Returns the distinct jobs; schedules with the same tables share a job."""
    return list({job.key: job for job in jobs}.values())


def task_of(
    title: str,
    job: Job,
    executor: ScoresBatches,
    finish: Callable[[Mapping[int, Arrays]], None],
    form: Callable[[Batch], Form],
    **facts: object,
) -> Task:
    """Returns the task that scores a job.

    Args:
        finish: called with the finished batches by their numbers.
        form: returns the form of a batch.
        facts: further facts that determine the numbers, in addition to the length, the tables and the plan.
    """
    tables, plan = job.tables, job.plan

    def score(batch: Batch, lacking: Sequence[int]) -> list[Arrays]:
        scored = executor.score(batch)
        tables.check()  # so that scores with changed tables are not stored
        return [scored]

    def complete(finished: Sequence[FinishedBatches]) -> None:
        finish(finished[0].batches)

    about = {"length": job.lengths[-1], "rotation": tables.rotation, "plan": plan.sha256, **facts}
    # A server scores several batches at once, and another server may continue a run.
    stream, confirm = (getattr(executor, name, None) for name in ("stream", "confirm"))
    return Task(title, plan, [about], score, complete, form, tables.live, stream=stream, confirm=confirm)
