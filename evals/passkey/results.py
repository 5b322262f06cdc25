"""The result of a retrieval run, and how it is printed and written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ...output.escaping import escaped
from ...output.plotting import save
from ..metrics.cells import csv_text
from ..results.saving import Saved
from ..run_folder.folder import writable_folder
from ..run_folder.formats import SCHEMA
from ..statistics.intervals import PERCENT
from .answers import AccuracyRow, Answer, Asked
from .metrics import ACCURACY, EFFECTIVE, GAINS, METRICS, EffectiveRow, GainsRow, by_depth, draw

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(repr=False)
class Retrieval(Asked, Saved):
    """A finished (or interrupted) run; :class:`.answers.Asked` has its attributes."""

    kind: ClassVar[str] = "retrieval"
    __repr__ = Saved.__repr__
    metrics = METRICS

    @property
    def rows(self) -> list[AccuracyRow]:
        """Per schedule and length, one row over all depths and one for each depth."""
        return ACCURACY.rows(self)

    @property
    def paired(self) -> list[GainsRow]:
        """The change of every schedule against the baseline, at every length that both have."""
        return GAINS.rows(self)

    @property
    def effective(self) -> list[EffectiveRow]:
        """The effective length of every schedule."""
        return EFFECTIVE.rows(self)

    def to_dict(self) -> dict[str, object]:
        """Returns the content of results.json."""
        meta = {name: getattr(self, name) for name in ("kind", "model", "data", "protocol", "versions", "cost")}
        return {"schema": SCHEMA, **meta, **self._parts()}

    def protocol_line(self) -> str:
        """Returns a few sentences that say how the numbers were measured."""
        protocol = self.protocol
        joined = "" if protocol["task"] == "passkey" else " (questions of one prompt taken as independent)"
        return (
            f"protocol {protocol['task']}: {protocol['holds']}; {self._prompts()}, seed {protocol['seed']}, "
            f"{protocol['digits']} digits, {'BOS first' if protocol['has_bos'] else 'no BOS'}, "
            f"filler {escaped(self.data['source'])}, {self.model['dtype']}. An answer counts when every token of it is "
            f"ranked first (greedy decoding would write it); brackets are Wilson {PERCENT} intervals{joined}, "
            f"± is a {PERCENT} t interval over prompts. {self._bar()}. Prompts sha256 {self.data['sha256'][:12]}"
        )

    def _lines(self) -> list[list[Any]]:
        """Returns one line per schedule, length and depth (empty over all depths)."""
        return _lines(AccuracyRow, self.rows)

    def _summary(self) -> str:
        lengths = ", ".join(f"{length:,}" for length in self.lengths)
        asked = f"{self.protocol['task']}, {self.data['documents']} prompts"
        schedules = ", ".join(map(self.named, self.schedules))
        return f"{Path(self.model['path']).name}: {schedules}; at {lengths} tokens; {asked}"

    def plot(self, path: str | Path | None = None) -> Figure:
        """Draws heat maps of accuracy and answer NLL by length and depth, one column per schedule.

        Args:
            path: also write it to this image file (png, svg or pdf).

        Raises:
            RopescaleError: matplotlib is not installed.
            CheckpointError: the file cannot be written.
        """
        figure = draw(self)
        if path is not None:
            save(figure, path)
        return figure

    def _tables(self) -> dict[str, str]:
        return {"results.csv": self.to_csv(), "answers.csv": csv_text(_lines(Answer, self.answers))}

    def _heading(self) -> str:
        return f"Retrieval ({self.protocol['task']})"

    def _details(self) -> str:
        odd = self.data.get("not_retokenized", 0)
        which = (
            f"{odd} of {self.data['documents']} prompts tokenize differently" if odd else "Every prompt tokenizes alike"
        )
        ids = f"{which} when its text is tokenized in one piece; the ids of the pieces were used."
        return f"{by_depth(self)}\n\n{ids}"

    def _prompts(self) -> str:
        depths = ", ".join(f"{depth:.3g}" for depth in self.protocol["depths"])
        trials = self.protocol["trials"]
        count = f"{trials} prompt{'s' * (trials != 1)} of each length"
        return f"{count} and depth ({depths})" if self.protocol["task"] == "passkey" else f"{count} (depths {depths})"

    def _bar(self) -> str:
        """Returns the meaning of the effective length here."""
        shortest, needed = self.lengths[0], self.effective[0].needed
        if not needed:
            return f"No schedule finds anything at {shortest:,} tokens, so none has an effective length"
        share = f"{self.threshold:g} of the best at {shortest:,} tokens"
        return f"Effective length: the longest up to which accuracy is at least {needed:.3g} at every length, {share}"


def retrieval_folder(out: str | Path) -> Path:
    """Returns the folder that a run will be written into, or refuses it before hours of work.

    Raises:
        CheckpointError: it cannot be written, or holds files that no run wrote, or the results of a perplexity run.
    """
    return writable_folder(out, Retrieval.kind)


def _lines(kind: type, rows: Iterable[AccuracyRow | Answer]) -> list[list[Any]]:
    return [[field.name for field in fields(kind)], *([*asdict(row).values()] for row in rows)]
