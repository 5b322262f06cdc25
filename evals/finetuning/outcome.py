"""The result of a training: its figures from the first step to the last, as text and as plain data."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from ...errors import RopescaleError
from ..metrics import paired, perplexity
from ..metrics.base import rests_on
from ..metrics.cells import change_cell, table
from ..metrics.paired import PairedRow
from ..metrics.perplexity import PerplexityRow
from ..results.result import Result
from ..running.variants import AS_IS
from ..training.measuring import BASE, ORIGINAL, renamed
from ..training.stages import UNSCALED, progress
from .workspace import Workspace

_STEP = re.compile("step-([0-9]+)")

SEEN = 0.01
"""The share of trained text from which on measured text is not called held-out."""


@dataclass(frozen=True)
class Outcome:
    """A finished training.

    Attributes:
        folder: the result.
        measured: where the measurements lie.
        steps, tokens: what was trained.
        stages: the step of each label, in order; None is the model before its schedule.
        result: all the measurements of the same tokens as the last one, under these labels; None without any.
        seen: the share of the measured text that was trained on.
    """

    folder: Path
    measured: Path
    steps: int
    tokens: int
    stages: Mapping[str, int | None]
    result: Result | None = None
    seen: float = 0.0

    @classmethod
    def read(cls, space: Workspace, steps: int, tokens: int, seen: float = 0.0) -> Outcome:
        """Reads what was measured, also before the training was stopped and continued."""
        runs = dict(sorted(_runs(space.measured), key=lambda each: -1 if each[0] is None else each[0]))
        kept = {step: run for step, run in runs.items() if _alike(run, [*runs.values()][-1])}
        stages = {run.baseline if step is None else run.schedules[0]: step for step, run in kept.items()}
        return cls(space.target, space.measured, steps, tokens, stages, _joined(kept, stages), seen)

    @cached_property
    def paired(self) -> list[PairedRow]:
        """The change of the last measurement against the one before the first step, and against the model before its
        schedule; on the same tokens, at every length."""
        if self.result is None or len(self.stages) < 2:
            return []
        *before, last = self.stages
        others = [label for label in reversed(before) if self.stages[label] in (0, None)]
        rows = [paired.METRIC.rows(replace(self.result, baseline=label)) for label in others]
        return [row for each in rows for row in each if row.schedule == last]

    def to_dict(self) -> dict[str, object]:
        """Returns it as plain data."""
        names = ("schedule", "length", "ppl", "ppl_low", "ppl_high", "interval")
        rows = [
            {"step": self.stages[row.schedule]} | {name: getattr(row, name) for name in names}
            for row in (self.result.rows if self.result else ())
        ]
        names = ("schedule", "baseline", "length", "delta_nll", "low", "high", "interval")
        changes = [{name: getattr(row, name) for name in names} for row in self.paired]
        return {"out": str(self.folder), "measured": str(self.measured), "steps": self.steps, "tokens": self.tokens,
                "rows": rows, "paired": changes, "trained_on": self.seen}  # fmt: skip

    def to_markdown(self) -> str:
        """Returns a table of the perplexities, one of the changes, and what is to be known of them."""
        done = f"{self.steps:,} steps, {self.tokens:,} tokens: {self.folder}"
        return "\n\n".join([*self._tables(), *([not_held_out(self.seen)] if self.seen >= SEEN else []), done])

    def _tables(self) -> Iterator[str]:
        if self.result is None:
            return
        yield from perplexity.METRIC.to_markdown(self.result)
        cells = {(f"against {row.baseline}", row.length): change_cell(row.change) for row in self.paired}
        if cells:
            what = f"nats per token, below zero is better; {rests_on(self.result)}"
            yield f"Change in NLL of {[*self.stages][-1]} on the same tokens ({what}):"
            yield table(self.result.lengths, "change", cells, dict.fromkeys(label for label, _ in cells))


def not_held_out(seen: float) -> str:
    """Returns the sentence for a measurement on what was trained on."""
    return (
        f"{seen:.0%} of the measured text is in the training text, word for word: these figures are not held-out, and "
        "say little of other texts"
    )


def _runs(folder: Path) -> Iterator[tuple[int | None, Result]]:
    for each in sorted(folder.iterdir()) if folder.is_dir() else []:
        match = _STEP.fullmatch(each.name)
        if match or each.name == ORIGINAL:
            with suppress(RopescaleError):
                step = int(match[1]) if match else None
                yield step, renamed(Result.load(each), {AS_IS: progress(step or 0), BASE: UNSCALED})


def _alike(one: Result, other: Result) -> bool:
    """Whether both measured the same tokens at the same lengths."""
    return one.lengths == other.lengths and all(one.same_tokens(other, length) for length in one.lengths)


def _joined(runs: Mapping[int | None, Result], stages: Mapping[str, int | None]) -> Result | None:
    """Returns one measurement that has the passes of each stage."""
    if not runs:
        return None
    labels = {step: label for label, step in stages.items()}
    passes = [each for step, run in runs.items() for each in run.passes if each.schedule == labels[step]]
    tables = {name: each for run in runs.values() for name, each in run.tables.items()}
    last = [*runs.values()][-1]
    made = replace(last, passes=passes, divergences=[], baseline=[*stages][-1], tables=tables)
    rows = [row for step, run in runs.items() for row in run.rows if row.schedule == labels[step]]
    made.figures[PerplexityRow] = rows  # as they were measured: a part of them needs the texts
    return made
