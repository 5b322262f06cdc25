"""The passes of a run and the tasks that score them: schedules, the short-context cost, and truncation.

The short-context cost is the change of predictions within the trained length.

Truncation is the unchanged model on only the last tokens, up to its trained length. It uses the model's training
tables, and windows of the trained length L0, a stride apart, with BOS if the schedules get BOS. Each window scores its
last tokens. Together, the windows score exactly the tokens at positions from L0 on in the measured windows. A smaller
stride gives each token more context, at least L0 - stride, and takes more forward passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...errors import DataError, RopescaleError
from ..backends.base import ScoresBatches, ScoresTexts
from ..backends.schedules import HeldTables
from ..data.windows import prefix, truncated
from ..facts import Divergence, positions_of
from ..scoring.batches import Arrays, Batch, BatchPlan, Feed, Form, assembled, per_token, plan_pass
from ..store import FinishedBatches
from .corpus import Corpus
from .options import refuse_impossible
from .runner import Task


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
    # A server scores several batches at once, in order of completion, and another server may continue a run.
    stream, confirm = (getattr(executor, name, None) for name in ("stream", "confirm"))
    return Task(title, plan, [about], score, complete, form, tables.live, stream=stream, confirm=confirm)


def comparing(
    base: HeldTables,
    others: Sequence[HeldTables],
    length: int,
    plan: BatchPlan[Feed],
    scorer: ScoresTexts,
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

    def score(batch: Batch[Feed], lacking: Sequence[int]) -> list[Arrays]:
        live = [each.live for each in distinct.values()]
        return scorer.compare(batch, base.live, [live[number] for number in lacking])

    def complete(finished: Sequence[FinishedBatches]) -> None:
        unchanged = [[np.full(size, value, np.float32) for size in plan.sizes] for value in (0.0, 1.0)]
        numbers = {}
        for rotation, done in zip(distinct, finished, strict=True):
            numbers[rotation] = [assembled(plan, done.batches, name) for name in ("kl", "same")]
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
    form = per_token(kl=np.float32, same=np.bool_)
    return Task("short-context cost", plan, facts, score, complete, form, further_passes=1)


SHARES = (16, 8, 4, 2)
"""The divisors of the trained length that give the candidate strides. The smallest stride that costs at most as much as
all other passes is used."""


def plan_truncation(
    corpus: Corpus,
    trained: int | None,
    as_trained: Callable[[int], HeldTables],
    rest: int,
    batch_tokens: int,
    before: int | None = None,
) -> tuple[Job | None, str]:
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
    return Job(tables, (trained,), plan, stride), told
