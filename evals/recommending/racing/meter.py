"""Measures candidates on some of the windows: the model is loaded once, and tables are swapped."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...data.documents import Document
from ...data.far_repeats import far_repeats
from ...data.windows import prefix
from ...parallel.processes import Group
from ...running.progress import Notes
from ...running.runner import Facts, Runner, Task, task_of
from ...running.selection import Corpus
from ...running.variants import HeldPass, Variant, passes_of
from ...scoring.batches import Batch, plan_pass
from ...scoring.executor import Executor
from ...scoring.scorer import Scorer
from ...store import Store
from ..objective import Objective
from .measured import BEYOND, FAR, OTHERS, CandidateLosses, Column, held_windows


@dataclass
class Meter:
    """Measures candidates, and keeps their losses.

    Attributes:
        scorer: scores under the live tables.
        corpus: all the windows.
        objective: what is minimised, and the lengths.
        variants: the model under each candidate, by spec.
        losses: all that is measured so far.
        fed: the tokens that went through the model, finished ones of an earlier run included.
    """

    scorer: Scorer
    corpus: Corpus
    objective: Objective
    variants: Mapping[str, Variant]
    losses: CandidateLosses
    batch_tokens: int
    notes: Notes
    facts: Facts
    fed: int = 0
    _readings: dict[str, list[HeldPass]] = field(default_factory=dict)

    def measure(
        self, candidates: Sequence[str], windows: Sequence[int], title: str, store: Store, group: Group, about: Facts
    ) -> CandidateLosses:
        """Measures candidates on windows, in all processes, and returns all losses so far.

        Args:
            title: of the progress.
            store: finished batches are taken from it and put into it.
            about: what the run is, for the next one in the same folder.
        """
        part = self.part(windows)
        executor = Executor(self.scorer, part.documents, self.corpus.bos, self.notes.warn)
        tasks = [self._task(each, reading, windows, part, executor, title)
                 for each in candidates for reading in self.readings(each)]  # fmt: skip
        distinct = {str(task.facts): task.plan for task in tasks}  # others with the same tables and windows share them
        self.fed += sum(plan.cost.positions for plan in distinct.values())
        self.carry_out(tasks, executor, store, group, about)
        return self.losses

    def carry_out(self, tasks: Sequence[Task], executor: Executor, store: Store, group: Group, about: Facts) -> None:
        """Runs tasks, and gives every process the losses."""
        runner = Runner(self.facts, store, group, self.notes, self.scorer.device)
        runner.take(tasks)
        if runner.left:
            executor.check(runner.left[0])
        runner.run(about)
        self.losses = group.from_leader(self.losses)

    def part(self, windows: Sequence[int]) -> Corpus:
        """Returns the corpus with some of its windows alone."""
        part = copy.copy(self.corpus)
        part.documents = [self.corpus.documents[number] for number in windows]
        part.windows = held_windows(self.corpus.windows, windows)
        return part

    def readings(self, candidate: str) -> list[HeldPass]:
        """Returns the passes of a candidate: one at the target, or one for each table where they follow the length."""
        if candidate not in self._readings:
            held = self.variants[candidate].tables(self.objective.needed)
            if all(tables.frozen_at is None for tables in held.values()):
                held = dict.fromkeys(self.objective.lengths, held[self.objective.target])
            self._readings[candidate] = passes_of(held)
        return self._readings[candidate]

    def _task(
        self, candidate: str, reading: HeldPass, windows: Sequence[int], part: Corpus, executor: Executor, title: str
    ) -> Task:
        sizes = [len(document.ids) for document in part.documents]
        length = reading.lengths[-1]
        plan = plan_pass(sizes, length, None, self.corpus.has_bos, self.batch_tokens)

        def finish(nll: list[np.ndarray], split: int) -> None:
            """Sums the losses of a pass."""
            for column, masks in self.masks(windows).items():
                if column in reading.lengths if isinstance(column, int) else length == self.objective.target:
                    self.losses.put(candidate, column, sums(windows, nll, masks))

        return task_of(title, plan, length, reading.tables, executor, finish, windows=list(windows))

    def batch(self, windows: Sequence[int]) -> Batch:
        """Returns the first batch of a pass at the target over some windows."""
        sizes = [len(document.ids) for document in self.part(windows).documents]
        return plan_pass(sizes, self.objective.target, None, self.corpus.has_bos, self.batch_tokens).batches[0]

    def masks(self, windows: Sequence[int]) -> dict[Column, list[np.ndarray]]:
        """Returns, per column, which scored tokens of each window belong to it; bool [tokens scored at the target]."""
        documents = [self.corpus.documents[number] for number in windows]
        every = [masks_of(each, self.objective, self.corpus.has_bos) for each in documents]
        return {column: [each[column] for each in every] for column in self.losses.columns}


def masks_of(document: Document, objective: Objective, bos: bool) -> dict[Column, np.ndarray]:
    """Returns, per column, which scored tokens of a window belong to it; bool [tokens scored at the target]."""
    whole = prefix(objective.target, bos)
    counted = np.ones(whole.count, bool)
    if document.scored is not None:
        counted = np.asarray(document.scored[whole.scored : whole.stop], bool)
    found: dict[Column, np.ndarray] = {}
    for length in objective.lengths:
        found[length] = counted & (np.arange(whole.count) < prefix(length, bos).count)
    beyond = counted & ~found[objective.short]
    far = np.asarray(far_repeats(document.ids, objective.short)[whole.scored : whole.stop], bool)
    return {**found, BEYOND: beyond, FAR: beyond & far, OTHERS: beyond & ~far}


def empty(corpus: Corpus, objective: Objective) -> CandidateLosses:
    """Returns the losses of nothing yet: the windows, the columns and how many tokens each has."""
    masks = [masks_of(each, objective, corpus.has_bos) for each in corpus.documents]
    columns = list(masks[0])
    counts = np.array([[each[column].sum() for column in columns] for each in masks], np.float64)
    weights: dict[Column, float] = {**objective.weights}
    return CandidateLosses(corpus.windows, columns, counts, weights)


def sums(windows: Sequence[int], nll: Sequence[np.ndarray], masks: Sequence[np.ndarray]) -> dict[int, float]:
    """Returns, per window, the fp64 sum of the losses in a mask."""
    return {
        number: float(losses[mask[: len(losses)]].sum(dtype=np.float64))
        for number, losses, mask in zip(windows, nll, masks, strict=True)
    }
