"""The short-context cost: how a schedule changes predictions where the model did well without it.

Both sets of tables are run on the same windows, at the largest measured length up to the trained one. The shared head
turns the two trunks' answers into logits block by block, so that of every scored token two numbers remain: the KL
divergence from the baseline's distribution, and whether the most likely token is still the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..metrics.stored import Divergence
from ..scoring.batches import Batch, BatchPlan, Scored
from ..scoring.executor import Executor
from ..store import Shelf
from .runner import Facts, Task
from .variants import HeldTables

VALUES = 2
"""Numbers that are kept of every scored token."""


@dataclass(frozen=True)
class Comparison:
    """A schedule beside the baseline.

    Attributes:
        base, other: the tables that are compared.
        length: positions of the windows that both are run on.
        plan: the batches of those windows; the same for all comparisons of a run.
    """

    base: HeldTables
    other: HeldTables
    length: int
    plan: BatchPlan

    @property
    def facts(self) -> Facts:
        """The facts that the numbers depend on, as the store keeps them."""
        rotations = [self.base.rotation, self.other.rotation]
        return {"length": self.length, "divergence": rotations, "plan": self.plan.sha256}

    def divergence(self, shelf: Shelf | None, shares: int) -> Divergence:
        """Returns the comparison for the results, once all batches are on the shelf.

        Args:
            shelf: None where both have the same tables, so that nothing can differ and nothing need run.
            shares: how many trunks its windows went through: its own, and the baseline's where that ran for it; 0
                where another schedule had the same tables.
        """
        kl, same = ([np.full(size, value, np.float32) for size in self.plan.sizes] for value in (0.0, 1.0))
        if shelf is not None:
            halves = {number: np.split(each.nll, VALUES) for number, each in shelf.batches.items()}
            kl, same = (self.plan.assembled({n: half[row] for n, half in halves.items()}) for row in range(VALUES))
        cost = self.plan.cost
        return Divergence(
            schedule=self.other.variant.label,
            baseline=self.base.variant.label,
            length=self.length,
            kl=kl,
            same=same,
            forward_passes=shares * cost.forwards,
            positions=shares * cost.positions,
        )


def comparing(found: Sequence[Comparison], executor: Executor, finish: Callable[[list[Divergence]], None]) -> Task:
    """Returns the task that runs all comparisons, the baseline once for each batch; those that take passes have facts.

    Args:
        found: of one length and with one baseline.
        finish: takes all of them for the results.
    """
    distinct = {each.other.rotation: each for each in found if each.other.rotation != each.base.rotation}

    def score(batch: Batch, lacking: Sequence[int]) -> list[Scored]:
        others = [each.other.live for each in distinct.values()]
        return executor.compare(batch, found[0].base.live, [others[number] for number in lacking])

    def finished(shelves: Sequence[Shelf]) -> None:
        kept = dict(zip(distinct, shelves, strict=True))
        # The first carries the baseline's forward passes.
        shares = {rotation: 1 if number else 2 for number, rotation in enumerate(kept)}
        finish([each.divergence(kept.get(each.other.rotation), shares.pop(each.other.rotation, 0)) for each in found])

    plan, facts = found[0].plan, [each.facts for each in distinct.values()]
    return Task("short-context cost", plan, facts, score, finished, values=VALUES, besides=1, nll=False)
