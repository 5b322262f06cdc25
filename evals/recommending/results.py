"""The results of a recommendation: all candidates, the finalists on held-out text, the conclusion, and the files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

from ...files import local_path
from ...output.formatting import Page, code_span, fenced, grid, sentence
from ...output.plotting import in_style
from ..checking import Parsed
from ..facts import TRUNCATION
from ..metrics.base import Metric, Picture, perplexities
from ..metrics.cells import Line, digits, exp, percent
from ..metrics.drawing import Curves, short, style_of, tokens
from ..metrics.stored import part_of
from ..results.folder import RESULTS, read_results, refusing_damage
from ..results.result import Result
from ..results.saving import Saved
from ..statistics.intervals import PERCENT, Estimate
from . import wording
from .evidence import AnswerRow, CandidateRow, Evidence, FinalistRow, LeftOutRow
from .options import Weights
from .race import difference, estimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_FAR = 0.15
"""The largest change against YaRN's default, in nats, that the plot shows."""


def draw_candidates(stored: Recommendation) -> Figure:
    """Draws the change at the target against the change within the trained length, for every candidate.

    Candidates that are far worse than YaRN's default are omitted; the title has their number.

    Raises:
        RopescaleError: matplotlib is not installed.
    """
    rows = stored.rows
    chosen = stored.schedule
    protocol = stored.protocol
    near = [row for row in rows if row.schedule == chosen or max(row.delta_target, row.delta_short) <= _FAR]
    families: dict[str, list[tuple[float, float]]] = {}
    for row in near:
        families.setdefault(row.schedule.partition(":")[0], []).append((row.delta_short, row.delta_target))
    with in_style(8.4, 4.8) as figure:
        axes = figure.subplots()
        for number, (family, points) in enumerate(families.items()):
            style = style_of(number, family) | {"linestyle": "", "markersize": 5, "alpha": 0.8}
            axes.plot(*zip(*points), label=family, **style)
        recommended = [(row.delta_short, row.delta_target) for row in near if row.schedule == chosen]
        style = {"markersize": 13, "fillstyle": "none", "color": "black"}
        axes.plot(*zip(*recommended), "o", label=f"recommended:\n{short(stored.named(chosen))}", **style)
        axes.set_xlabel(f"change within the trained {tokens(protocol['trained_length'])} (nats per token)")
        axes.set_ylabel(f"change at {tokens(protocol['target_length'])} (nats per token)")
        left_out = len(rows) - len(near)
        note = f", {left_out} far worse candidates outside" if left_out else ""
        against = short(stored.named(rows[0].baseline), 24)
        title = f"Every candidate against {against}; lower left is better\n{Path(stored.model['path']).name}{note}"
        axes.set_title(title, loc="left", fontsize=10)
        figure.legend(loc="outside right upper", fontsize=8, frameon=False)
    return figure


class Advice(Metric["Recommendation", AnswerRow]):
    """The recommendation in a few sentences, and the commands."""

    row = AnswerRow
    key = "answer"

    def reduce(self, stored: Recommendation) -> list[AnswerRow]:
        """Returns a list of one row."""
        return [wording.answer(stored.measured)]

    def to_markdown(self, stored: Recommendation) -> Page:
        """Returns the commands."""
        (row,) = self.rows(stored)
        return [code_span(each) for each in (row.command, row.serve) if each]


class AllCandidates(Metric["Recommendation", CandidateRow]):
    """Every candidate against YaRN's default, on the windows that the candidate was measured on."""

    row = CandidateRow
    key = "rows"
    picture = Picture(
        "candidates.png", "Every candidate: at the target, and within the trained length", draw_candidates
    )

    def reduce(self, stored: Recommendation) -> list[CandidateRow]:
        """Returns one row per candidate, sorted by the objective, best first."""
        evidence = stored.measured
        goal = evidence.objective
        usual = evidence.candidates.usual
        specs = evidence.candidates.specs
        same = evidence.candidates.same
        measured = {spec: evidence.measured(spec) for spec in specs}
        parts = {windows: part_of(evidence.losses, windows) for windows in measured.values()}

        def change(spec: str, weights: Weights) -> Estimate:
            return estimate(parts[measured[spec]], weights, spec, usual)

        rows = []
        for spec in specs:
            point = (change(spec, {goal.target: 1}).mean, change(spec, {goal.short: 1}).mean)
            whole = change(spec, goal.weights)
            rounds = sum(spec in each.candidates for each in evidence.rounds)
            figures = (rounds, len(measured[spec]), whole.mean, whole.low, whole.high, *point)
            rows.append(CandidateRow(spec, usual, *figures, spec in evidence.finalists, same.get(spec, [])))
        return sorted(rows, key=lambda row: row.delta)

    def has_picture(self, stored: Recommendation) -> bool:
        """Returns whether there are candidates other than the unchanged model."""
        return len(self.rows(stored)) > 1


class Finalists(Metric["Recommendation", FinalistRow]):
    """The finalists, and truncation, on the held-out text."""

    row = FinalistRow
    key = "paired"

    def reduce(self, stored: Recommendation) -> list[FinalistRow]:
        """Returns one row per finalist and one for truncation if measured, sorted by the objective."""
        evidence = stored.measured
        chosen = stored.schedule
        goal = evidence.objective
        held_out = evidence.comparison
        rows = []
        for label in [*evidence.finalists, *([TRUNCATION] if evidence.truncates else [])]:
            at_target = estimate(held_out, {goal.target: 1}, label)
            _, ppl_low, ppl_high = perplexities(at_target)
            change = difference(held_out, goal.weights, label, chosen, evidence.level)
            far = evidence.far_repeats(label)
            rows.append(
                FinalistRow(
                    schedule=label,
                    baseline=chosen,
                    length=goal.target,
                    nll=at_target.mean,
                    ppl=exp(at_target.mean),
                    ppl_low=ppl_low,
                    ppl_high=ppl_high,
                    short_ppl=exp(estimate(held_out, {goal.short: 1}, label).mean),
                    delta=change.mean,
                    low=change.low,
                    high=change.high,
                    far=far.mean if any(far.counts) else None,
                    far_tokens=sum(far.counts),
                )
            )
        return sorted(rows, key=lambda row: row.delta)

    def to_markdown(self, stored: Recommendation) -> Page:
        """Returns the finalists' table with its caption."""
        return finalists_table(stored, 5)


def finalists_table(stored: Recommendation, columns: int) -> Page:
    """Returns a caption and the first columns of the finalists' table, with the chosen schedule first, truncation last.

    The differences are in perplexity, weighted over both lengths. Returns an empty list if there is only one finalist.
    """
    rows = FINALISTS.rows(stored)
    protocol = stored.protocol
    if len(rows) < 2:
        return []
    target = protocol["target_length"]
    trained = protocol["trained_length"]
    header = ["schedule", f"at {target:,}", f"at {trained:,}", "difference", "far repeats"]
    labels = {row.schedule: stored.markdown_name(row.schedule) for row in rows}
    labels[TRUNCATION] = f"truncation (last {trained:,})"
    rows = sorted(rows, key=lambda row: (row.schedule == TRUNCATION, row.schedule != row.baseline, row.delta))
    lines = [[labels[row.schedule], *cells(row)][:columns] for row in rows]
    weights = " and ".join(f"{weight:.3g} at {int(at):,}" for at, weight in protocol["weights"].items())
    said = f"Perplexity, and its difference from that of the first row (below 0: better), with a weight of {weights}"
    if columns == len(header):
        far = f"the {rows[0].far_tokens:,} tokens that repeat text further back than {trained:,}"
        said += f"; and the perplexity of {far}"
    return [f"{said}:", grid(header[:columns], lines, right=range(1, columns))]


class LeftOut(Metric["Recommendation", LeftOutRow]):
    """The schedules that were not tried."""

    row = LeftOutRow
    key = "left_out"

    def reduce(self, stored: Recommendation) -> list[LeftOutRow]:
        """Returns one row per schedule that was not tried."""
        return [LeftOutRow(name, why) for name, why in stored.measured.candidates.left_out.items()]

    def to_markdown(self, stored: Recommendation) -> Page:
        """Returns a paragraph that lists these schedules, or an empty list if all were tried."""
        rows = [f"{row.schedule} ({sentence(row.why)})" for row in self.rows(stored)]
        return [f"Not tried: {'; '.join(rows)}."] if rows else []


ANSWER = Advice()
FINALISTS = Finalists()
CANDIDATES = AllCandidates()

METRICS = (ANSWER, FINALISTS, CANDIDATES, LeftOut())


def cells(row: FinalistRow) -> list[str]:
    """Formats a finalist's perplexities, its difference, and the perplexity of far repeats."""
    change = "-" if row.schedule == row.baseline else percent(Estimate(row.delta, row.low, row.high))
    far = "-" if row.far is None else digits(exp(row.far), 4)
    return [digits(row.ppl, 4), digits(row.short_ppl, 4), change, far]


@dataclass(repr=False)
class Recommendation(Saved):
    """A recommendation: the answer, and every figure that it is based on.

    Attributes:
        evidence: the measurements; None in a recommendation that was loaded from a folder.
    """

    kind: ClassVar[str] = "recommendation"
    metrics = METRICS

    evidence: Evidence | None = None

    @classmethod
    def load(cls, out: str | Path) -> Self:
        """Reads a folder that :meth:`save` wrote.

        Raises:
            DataError: the folder holds no such results, or a file is damaged or missing.
        """
        path = local_path(out)
        results: Parsed = read_results(path, cls.kind)
        with refusing_damage(path / RESULTS):
            made = cls(results["model"], results["data"], dict(results["protocol"]), results["versions"])
            made.figures |= {each.row: each.read(results) for each in METRICS}
        return made

    @property
    def measured(self) -> Evidence:
        """The measurements of a recommendation that was not loaded from a folder."""
        if self.evidence is None:
            raise ValueError("a loaded recommendation has rows, but no losses")
        return self.evidence

    @property
    def comparison(self) -> Result:
        """The finalists' measurement on the held-out text, of a recommendation that was not loaded from a folder."""
        return self.measured.comparison

    @property
    def answer(self) -> AnswerRow:
        """The recommendation, as sentences and commands."""
        return ANSWER.rows(self)[0]

    @property
    def schedule(self) -> str:
        """The spec of the recommended schedule, or ``as-is`` for no change.

        ``answer.decided`` tells whether the text suffices for a decision.
        """
        return self.answer.schedule

    @property
    def command(self) -> str:
        """The ``ropescale patch`` command; empty if no schedule is recommended."""
        return self.answer.command

    @property
    def rows(self) -> list[CandidateRow]:
        """The rows of all candidates, best first."""
        return CANDIDATES.rows(self)

    @property
    def finalists(self) -> list[FinalistRow]:
        """The rows of the finalists on the held-out text, sorted by the objective."""
        return FINALISTS.rows(self)

    def sentences(self) -> list[str]:
        """Returns the sentences of the recommendation; :meth:`main_table` has the command."""
        return self.answer.sentences

    def main_table(self) -> Page:
        """Returns the command, and a table of the finalists' perplexities and their differences from the chosen one."""
        command = fenced("sh", self.command) if self.command else ""
        return [command, *finalists_table(self, 4)]

    def rests_on(self) -> str:
        """Describes the windows that were measured, and the intervals if there are any."""
        protocol = self.protocol
        number = protocol["held_out_windows"]
        length = protocol["target_length"]
        on = f"Measured on {number:,} piece{'s' * (number != 1)} of the text ({length:,} tokens each)"
        apart = protocol["race_windows"] and protocol["race_windows"] + number == self.data["windows"]
        said = f"{on}{', not used to choose schedules' if apart else ''}."
        if any(row.low is not None for row in self.finalists):
            said += f" Differences are those in the average document; their {PERCENT} intervals hold together."
        return " ".join(filter(None, [said, self.answer.note]))

    def protocol_line(self) -> str:
        """Returns sentences that describe the race and the protocol."""
        protocol = self.protocol
        number = self.data["documents"]
        raced = protocol["race_windows"]
        rounds = [f"{each} schedules on {windows} window{'s' * (windows != 1)}" for each, windows in protocol["rounds"]]
        race = ""
        if rounds:
            share = protocol["tokens_fed"] / protocol["grid_tokens"]
            race = f"Race: {', '.join(rounds)}, new windows in each round; {share:.0%} of the tokens of all schedules "
            race += "on all the text. "
        return (
            f"{race}{number} document{'s' * (number != 1)}: {raced:,} window{'s' * (raced != 1)} of "
            f"the race, {protocol['held_out_windows']:,} that decide; equally good: within "
            f"{protocol['tolerance']:g} nats per token; {protocol['interval']} interval; {self.model['dtype']}; text "
            f"sha256 {self.data['sha256'][:12]}"
        )

    def _curves(self) -> Curves:
        short = self.protocol["trained_length"]
        target = self.protocol["target_length"]
        return {
            row.schedule: [(short, row.short_ppl, None, None), (target, row.ppl, row.ppl_low, row.ppl_high)]
            for row in self.finalists
        }

    def _lines(self) -> list[Line]:
        lines = super()._lines()
        for row in self.finalists:
            if row.schedule == TRUNCATION:  # against the chosen schedule
                lines.append([getattr(row, name, None) for name in lines[0]])
        return lines

    def _heading(self) -> str:
        return f"Recommendation for {self.protocol['target_length']:,} tokens"
