"""The short-context cost: how a schedule changes predictions where the model did well without it.

Both sets of tables are run on the same windows, at the largest measured length up to the trained one. The shared head
turns the two trunks' answers into logits block by block, so that of every scored token two numbers remain: the KL
divergence from the baseline's distribution, and whether the most likely token is still the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..results.stored import Divergence
from ..resuming.batch_log import Scored
from ..resuming.finished_batches import Shelf
from ..scoring.executor import Executor
from .batches import Batch, BatchPlan
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

    @property
    def trivial(self) -> bool:
        """Whether both have the same tables, so that nothing can differ and nothing need run."""
        return self.base.rotation == self.other.rotation

    def divergence(self, shelf: Shelf | None, shares: int) -> Divergence:
        """Returns the comparison for the results, once all batches are on the shelf.

        Args:
            shelf: None for one that is trivial.
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


def comparing(
    found: Sequence[Comparison], executor: Executor, finish: Callable[[list[Divergence]], None]
) -> tuple[Task, int]:
    """Returns the task that runs all comparisons, the baseline once for each batch, and how many of them take passes.

    Args:
        found: of one length and with one baseline.
        finish: takes all of them for the results.
    """
    distinct = list({each.other.rotation: each for each in found if not each.trivial}.values())

    def score(batch: Batch, lacking: Sequence[int]) -> list[Scored]:
        others = [distinct[number].other.live for number in lacking]
        return executor.compare(batch, distinct[0].base.live, others)

    def finished(shelves: Sequence[Shelf]) -> None:
        kept = {each.other.rotation: shelf for each, shelf in zip(distinct, shelves, strict=True)}
        finish(_divergences(found, kept))

    plan, facts = found[0].plan, [each.facts for each in distinct]
    task = Task("short-context cost", plan, facts, score, finished, values=VALUES, besides=1, nll=False)
    return task, len(distinct)


def _divergences(found: Sequence[Comparison], shelves: dict[str, Shelf]) -> list[Divergence]:
    """Returns all comparisons for the results; the first that ran carries the baseline's forward passes."""
    ran: set[str] = set()
    made = []
    for each in found:
        rotation = each.other.rotation
        shares = 0 if each.trivial or rotation in ran else 1 if ran else 2
        made.append(each.divergence(shelves.get(rotation), shares))
        ran |= set() if each.trivial else {rotation}
    return made
