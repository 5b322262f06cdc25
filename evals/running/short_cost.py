"""The short-context cost: the change of predictions within the trained length."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..backends.base import ScoresTexts
from ..backends.tables import HeldTables
from ..facts import Divergence
from ..scoring.batches import Arrays, Batch, BatchPlan, Feed, assembled, per_token
from ..store import FinishedBatches
from .runner import Task


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
