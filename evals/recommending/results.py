"""A recommendation, and how it is printed, written and loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ...files.reading import local_path
from ...output.escaping import escaped
from ...output.plotting import save
from ..metrics.cells import csv_text
from ..results.saving import Saved
from ..run_folder.folder import writable_folder
from ..run_folder.formats import SCHEMA
from ..run_folder.loading import read_results
from .evidence import AnswerRow, CandidateRow, FinalistRow, Judged
from .metrics import ANSWER, CANDIDATES, FINALISTS, METRICS, draw_finalists, draw_front

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(repr=False)
class Recommendation(Judged, Saved):
    """A recommendation: the answer, and every figure that it rests on."""

    kind: ClassVar[str] = "recommendation"
    __repr__ = Saved.__repr__
    metrics = METRICS

    @classmethod
    def load(cls, out: str | Path) -> Recommendation:
        """Reads a folder that :meth:`save` wrote.

        Raises:
            DataError: the folder holds no such results, or a file is damaged or missing.
        """
        found: Mapping[str, Any] = read_results(local_path(out), cls.kind)
        made = cls(found["model"], found["data"], dict(found["protocol"]), found["versions"], evidence=None)
        made.figures |= {each.row: each.read(found) for each in cls.metrics}
        return made

    @property
    def answer(self) -> AnswerRow:
        """The recommendation, in a sentence and as a command."""
        return ANSWER.rows(self)[0]

    @property
    def schedule(self) -> str:
        """The recommended schedule, as a spec; ``as-is`` for none. ``answer.decided`` says if the text suffices."""
        return self.answer.schedule

    @property
    def command(self) -> str:
        """The ``ropescale patch`` command; empty where nothing is recommended."""
        return self.answer.command

    @property
    def rows(self) -> list[CandidateRow]:
        """Every candidate, the best first."""
        return CANDIDATES.rows(self)

    @property
    def finalists(self) -> list[FinalistRow]:
        """The finalists on the text that decides, the recommended one first."""
        return FINALISTS.rows(self)

    def to_dict(self) -> dict[str, object]:
        """Returns the content of results.json."""
        meta = {name: getattr(self, name) for name in ("kind", "model", "data", "protocol", "versions")}
        return {"schema": SCHEMA, **meta, **self._parts()}

    def protocol_line(self) -> str:
        """Returns a sentence that says how it was measured."""
        protocol, number = self.protocol, self.data["documents"]
        weights = ", ".join(f"{float(weight):.3g} at {int(at):,}" for at, weight in protocol["weights"].items())
        halves = (
            f"{protocol['race_windows']:,} windows of the race, {protocol['held_out_windows']:,} others that decide"
        )
        return (
            f"objective: loss in nats per token, weighted {weights}; {number} document{'s' * (number != 1)}: {halves}; "
            f"equally good: within {protocol['tolerance']:g} nats; {protocol['interval']} interval; "
            f"{self.model['dtype']}; text sha256 {self.data['sha256'][:12]}"
        )

    def plot(self, path: str | Path | None = None) -> Figure:
        """Draws every candidate, and Pareto's front.

        Args:
            path: also write it to this image file (png, svg or pdf).

        Raises:
            RopescaleError: matplotlib is not installed.
            CheckpointError: the file cannot be written.
        """
        return _saved(draw_front(self), path)

    def plot_finalists(self, path: str | Path | None = None) -> Figure:
        """Draws the finalists with their intervals, and their loss against length, as :meth:`plot`."""
        return _saved(draw_finalists(self), path)

    def _summary(self) -> str:
        return f"{Path(self.model['path']).name} to {self.protocol['target_length']:,}: {self.answer.answer}"

    def _lines(self) -> list[list[Any]]:
        """Returns one line per candidate."""
        names = [field.name for field in fields(CandidateRow)]
        return [names, *([_cell(value) for value in asdict(row).values()] for row in self.rows)]

    def _tables(self) -> dict[str, str]:
        names = [field.name for field in fields(FinalistRow)]
        finalists = csv_text([names, *(list(asdict(row).values()) for row in self.finalists)])
        return {"results.csv": self.to_csv(), "finalists.csv": finalists}

    def _heading(self) -> str:
        return f"Recommendation for {self.protocol['target_length']:,} tokens"

    def _source(self) -> str:
        return f"Data: {escaped(self.data['source'])}, text sha256 `{self.data['sha256']}`.\n"


def recommendation_folder(out: str | Path) -> Path:
    """Returns the folder that a run will be written into, or refuses it before hours of work.

    Raises:
        CheckpointError: it cannot be written, or holds files that no run wrote, or the results of another kind of run.
    """
    return writable_folder(out, Recommendation.kind)


def _cell(value: object) -> object:
    return " ".join(map(str, value)) if isinstance(value, list) else value


def _saved(figure: Figure, path: str | Path | None) -> Figure:
    if path is not None:
        save(figure, path)
    return figure
