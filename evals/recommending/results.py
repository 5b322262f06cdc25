"""A recommendation, and how it is printed, written and loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from ..metrics.cells import csv_text, lines_of
from ..results.saving import Loadable, sentences_of, shown
from ..statistics.intervals import PERCENT
from .evidence import AnswerRow, CandidateRow, FinalistRow, Judged
from .metrics import ANSWER, CANDIDATES, FINALISTS, METRICS, brief_finalists, draw_finalists

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(repr=False)
class Recommendation(Judged, Loadable):
    """A recommendation: the answer, and every figure that it rests on."""

    kind: ClassVar[str] = "recommendation"
    metrics = METRICS

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

    def sentences(self) -> list[str]:
        """Returns the recommendation; the command that follows it stands above the table."""
        return sentences_of(self.answer.answer)

    def main_table(self) -> str:
        """Returns the command, and the finalists by perplexity and by their difference from the first."""
        command = [f"```sh\n{self.command}\n```"] if self.command else []
        return "\n\n".join([*command, *brief_finalists(self)])

    def rests_on(self) -> str:
        """Returns what the difference is over."""
        windows = f"{self.protocol['held_out_windows']:,} windows that chose nothing"
        return f"On {windows}; {PERCENT} intervals for all pairs together. The objective weighs both lengths."

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

    def plot_finalists(self, path: str | Path | None = None) -> Figure:
        """Draws the finalists with their intervals, and their loss against length, as :meth:`plot`."""
        return shown(draw_finalists(self), path)

    def _summary(self) -> str:
        return f"{Path(self.model['path']).name} to {self.protocol['target_length']:,}: {self.answer.answer}"

    def _tables(self) -> dict[str, str]:
        return {"finalists.csv": csv_text(lines_of(FinalistRow, self.finalists))}

    def _heading(self) -> str:
        return f"Recommendation for {self.protocol['target_length']:,} tokens"
