"""The short-context cost: what a schedule predicts otherwise where the model did well without it.

Both sets of tables are run on the same windows, at the largest measured length up to the trained one. The shared head
turns the two trunks' answers into logits block by block, so that of every scored token two numbers remain: the KL
divergence from the baseline's distribution, and whether the most likely token is still the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..results.result import Divergence
from .batches import Batch, Plan
from .resuming import Shelf

if TYPE_CHECKING:
    from .perplexity import Job, Key

VALUES = 2
"""Numbers that are kept of every scored token."""


@dataclass(frozen=True)
class Comparison:
    """A schedule beside the baseline.

    Attributes:
        base, other: the passes whose tables are compared.
        length: positions of the windows that both are run on.
        plan: the batches of those windows; the same for all comparisons of a run.
    """

    base: Job
    other: Job
    length: int
    plan: Plan

    @property
    def key(self) -> Key:
        """What the numbers depend on, the model and the tokens being given."""
        return self.base.rotation, self.other.rotation, self.plan.sha256

    @property
    def facts(self) -> dict[str, Any]:
        """The key in words, as the store keeps it."""
        return {
            "length": self.length,
            "divergence": [self.base.rotation, self.other.rotation],
            "plan": self.plan.sha256,
        }

    @property
    def trivial(self) -> bool:
        """Whether both have the same tables, so that nothing can differ and nothing need run."""
        return self.base.rotation == self.other.rotation

    def finished(self, shelf: Shelf | None, shares: int) -> Divergence:
        """For the results, once all batches are on the shelf.

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
            schedule=self.other.treatment.label,
            baseline=self.base.treatment.label,
            length=self.length,
            kl=kl,
            same=same,
            forward_passes=shares * cost.forwards,
            positions=shares * cost.positions,
        )


def comparisons(jobs: Sequence[Job], baseline: str, length: int, plan: Plan) -> list[Comparison]:
    """Every schedule beside the baseline at one length."""
    at = {job.treatment.label: job for job in jobs if length in job.lengths}
    return [Comparison(at[baseline], job, length, plan) for label, job in at.items() if label != baseline]


def to_run(found: Sequence[Comparison]) -> list[Comparison]:
    """Those that take forward passes, each set of tables once."""
    return list({each.key: each for each in found if not each.trivial}.values())


def left(found: Sequence[Comparison], shelves: Mapping[Key, Shelf]) -> list[Batch]:
    """The batches that some comparison lacks; all comparisons of a batch are made together."""
    batches = found[0].plan.batches if found else ()
    return [batch for batch in batches if any(batch.number not in shelves[each.key].batches for each in found)]


def finished(found: Sequence[Comparison], shelves: Mapping[Key, Shelf]) -> list[Divergence]:
    """All of them for the results; the first that ran carries the baseline's forward passes."""
    ran: set[Key] = set()
    made = []
    for each in found:
        shares = 0 if each.trivial or each.key in ran else 1 if ran else 2
        made.append(each.finished(shelves.get(each.key), shares))
        ran |= set() if each.trivial else {each.key}
    return made
