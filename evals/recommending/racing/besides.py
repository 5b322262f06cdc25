"""Measures truncation, and the schedule that a search finds, beside the fixed schedules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ....errors import DataError
from ...data.windows import prefix
from ...metrics.stored import Truncation
from ...parallel.processes import Group
from ...running.truncating import Truncating
from ...running.variants import trained_length
from ...scoring.executor import Executor
from ...searching.feeds.feeding import feeding
from ...searching.options import SearchOptions
from ...searching.running import SearchRun
from ...store import Facts, Store
from ..candidates import AS_IS
from ..evidence import TRUNCATION
from ..options import RecommendOptions
from .measured import Column
from .meter import Meter, sums


@dataclass(frozen=True)
class PlannedTruncation:
    """Truncation on the text that decides: the model as it is, given only the last tokens.

    Attributes:
        truncating: its windows; None where it is not measured.
        said: what the user is told of it.
    """

    truncating: Truncating | None
    said: str

    @classmethod
    def of(cls, meter: Meter, windows: Sequence[int], finalists: int) -> PlannedTruncation:
        """Plans it where it costs no more than the finalists do.

        Args:
            finalists: how many candidates are measured on these windows.
        """
        goal, model = meter.objective, meter.scorer.model
        if trained_length(model) != goal.short:
            return cls(None, "")
        rest = finalists * len(windows) * goal.target
        return cls(*Truncating.of(model, meter.part(windows), rest, meter.batch_tokens))

    @property
    def positions(self) -> int:
        """How many tokens it feeds."""
        return 0 if self.truncating is None else self.truncating.plan.cost.positions

    def measure(self, meter: Meter, windows: Sequence[int], store: Store, group: Group, about: Facts) -> None:
        """Measures it, and keeps its losses beside those of the candidates."""
        if self.truncating is None:
            return

        def keep(found: Truncation) -> None:
            put(meter, windows, found.nll)

        executor = Executor(meter.scorer, meter.part(windows).documents, None, meter.notes.warn)
        meter.fed += self.positions
        meter.carry_out([self.truncating.task(executor, keep)], executor, store, group, about)


def put(meter: Meter, windows: Sequence[int], nll: Sequence[np.ndarray]) -> None:
    """Keeps the losses of truncation: up to the trained length those of the model as it is, and from there on its own.

    Args:
        nll: per window, the losses of the tokens at positions from the trained length on, fp32.
    """
    losses, goal = meter.losses, meter.objective
    first = prefix(goal.short, meter.corpus.has_bos).count
    whole = [np.concatenate([np.zeros(first, np.float32), each]) for each in nll]
    for column, masks in meter.masks(windows).items():
        beyond = sums(windows, whole, masks)
        known: Column | None = min(column, goal.short) if isinstance(column, int) else None
        before = {number: 0.0 if known is None else losses.sum(AS_IS, number, known) for number in windows}
        losses.put(TRUNCATION, column, {number: beyond[number] + before[number] for number in windows})


def searched(meter: Meter, windows: Sequence[int], options: RecommendOptions, store: Store, group: Group) -> str | None:
    """Returns the schedule that a search finds on some windows, as a spec; None where there are too few for one."""
    asked = SearchOptions(
        budget_tokens=options.search_tokens or SearchOptions.budget_tokens,
        engine=options.engine,
        patching=options.patching,
        source=options.source,
        path=options.path,
        progress=meter.notes,
        logits_bytes=options.logits_bytes,
    )
    texts = meter.part(windows).documents
    bos = "no" if meter.corpus.bos is None else meter.corpus.bos
    try:
        fed = feeding(texts, meter.objective.target, None, bos, asked, judged=False)
        run = SearchRun(meter.scorer.model, fed, asked, compared=False)
    except DataError as error:
        meter.notes.warn(f"warning: nothing is searched: {error}")
        return None
    run.run(store, group)
    meter.fed += run.spent
    return group.from_leader(run.result().spec)
