"""A pass over every document under one set of rotary tables, and the task that scores it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ..backends.base import ScoresBatches
from ..backends.tables import HeldPass
from ..scoring.batches import Batch, BatchPlan, Scored
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
