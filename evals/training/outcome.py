"""What a training gave: its figures from the first step to the last, as text and as plain data."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ...errors import RopescaleError
from ...formatting import markdown
from ..results.result import Result
from ..running.variants import AS_IS
from .measuring import BASE, ORIGINAL
from .workspace import Workspace

_STEP = re.compile("step-([0-9]+)")


@dataclass(frozen=True)
class Outcome:
    """A finished training.

    Attributes:
        folder: the result.
        measured: where the measurements lie.
        steps, tokens: what was trained.
        ppl: by step and length, the perplexity; under step None that of the model before its schedule.
    """

    folder: Path
    measured: Path
    steps: int
    tokens: int
    ppl: Mapping[int | None, Mapping[int, float]]

    @classmethod
    def read(cls, space: Workspace, steps: int, tokens: int) -> Outcome:
        """Reads what was measured, also before the training was stopped and continued."""
        found: dict[int | None, Mapping[int, float]] = {}
        for folder in sorted(space.measured.iterdir()) if space.measured.is_dir() else []:
            match = _STEP.fullmatch(folder.name)
            step, label = (int(match[1]), AS_IS) if match else (None, BASE)
            if match or folder.name == ORIGINAL:
                found[step] = _perplexities(folder, label)
        return cls(space.target, space.measured, steps, tokens, found)

    def to_dict(self) -> dict[str, object]:
        """Returns it as plain data."""
        rows = [
            {"step": step, "length": length, "ppl": value}
            for step, values in self.ppl.items()
            for length, value in values.items()
        ]
        return {"out": str(self.folder), "measured": str(self.measured), "steps": self.steps, "tokens": self.tokens,
                "rows": rows}  # fmt: skip

    def to_markdown(self) -> str:
        """Returns a table of the perplexities."""
        done = f"{self.steps:,} steps, {self.tokens:,} tokens: {self.folder}"
        lengths = sorted({length for values in self.ppl.values() for length in values})
        if not lengths:
            return done
        rows = [
            ["before the schedule" if step is None else f"{step:,} steps"]
            + [f"{values[length]:.4g}" if length in values else "-" for length in lengths]
            for step, values in sorted(self.ppl.items(), key=lambda each: -1 if each[0] is None else each[0])
        ]
        header = ["perplexity", *(f"{length:,}" for length in lengths)]
        return f"{markdown(header, rows, right=range(1, len(header)))}\n\n{done}"


def _perplexities(folder: Path, label: str) -> Mapping[int, float]:
    try:
        return {row.length: row.ppl for row in Result.load(folder).rows if row.schedule == label}
    except RopescaleError:
        return {}
