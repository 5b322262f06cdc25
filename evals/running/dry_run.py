"""The cost of a run, without its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ...output.formatting import markdown
from ..progress import duration


@dataclass(frozen=True)
class DryRun:
    """The plan of a run, with its memory and time.

    Attributes:
        passes: the passes in order; schedules with the same tables share a pass. Each has a ``title`` (schedule and
            length, or the comparison), and the numbers of ``windows``, ``batches`` (forward passes) and fed ``tokens``,
            including BOS.
        memory: a sentence on the memory of the weights and of a batch.
        seconds: the estimated time in one process, based on a batch that was timed after a warm-up.
        timed: the number of tokens of that batch.
    """

    passes: Sequence[Mapping[str, Any]]
    memory: str
    seconds: float
    timed: int

    def to_dict(self) -> dict[str, object]:
        """Returns the plan as plain data."""
        return asdict(self)

    def to_markdown(self) -> str:
        """Returns a table of the passes, followed by memory and time."""
        total = {name: sum(each[name] for each in self.passes) for name in ("windows", "batches", "tokens")}
        lines = [*self.passes, {"title": "in all", **total}]
        rows = [[each["title"], *(f"{each[name]:,}" for name in total)] for each in lines]
        table = markdown(["pass", "windows", "forward passes", "tokens fed"], rows, right=[1, 2, 3])
        time = f"time: {duration(self.seconds)} in one process, estimated from a batch of {self.timed:,} tokens"
        return f"{table}\n\n{self.memory}\n{time}"
