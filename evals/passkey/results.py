"""What asking leaves: every answer with its NLL, and everything that is a reduction of them."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import RopescaleError
from ...formatting import escaped, markdown
from ...plotting import drawn
from ..results import folder as folders
from ..results.folder import opened_folder
from ..results.formats import SCHEMA
from ..results.statistics import mcnemar, ratio, wilson

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Answer:
    """One question, asked under one schedule.

    Attributes:
        schedule: its label.
        length: positions of the prompt, BOS and answer included.
        depth: as asked for.
        actual_depth: where the key really stood, as a share of the filler.
        trial, prompt: which prompt of this length; questions of one prompt share its text.
        position: how many positions come before the key.
        answer: the digits.
        tokens: how many tokens the answer has.
        correct: whether greedy decoding gives it.
        nll: of the whole answer, in nats.
    """

    schedule: str
    length: int
    depth: float
    actual_depth: float
    trial: int
    prompt: int
    position: int
    answer: str
    tokens: int
    correct: bool
    nll: float


@dataclass(frozen=True)
class Row:
    """Accuracy and answer NLL of one schedule at one length and depth, or over all depths (``depth`` None).

    ``accuracy_low`` and ``accuracy_high`` are Wilson's 95% interval; the NLL's is Student's t over prompts, None with
    fewer than two.
    """

    schedule: str
    table_sha256: str
    length: int
    depth: float | None
    answers: int
    correct: int
    accuracy: float
    accuracy_low: float
    accuracy_high: float
    answer_nll: float
    answer_nll_low: float | None
    answer_nll_high: float | None


@dataclass(frozen=True)
class Paired:
    """A schedule against the baseline on the same questions of one length.

    Attributes:
        gained: questions that only the schedule answers.
        lost: questions that only the baseline answers.
        delta_accuracy: schedule minus baseline.
        p_value: exact McNemar test (a sign test on the questions that came out differently), two-sided.
        delta_nll: mean answer NLL of the schedule minus the baseline's, in nats; low and high over prompts, 95%.
    """

    schedule: str
    baseline: str
    length: int
    answers: int
    gained: int
    lost: int
    delta_accuracy: float
    p_value: float
    delta_nll: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Effective:
    """The longest length up to which a schedule answers well enough at every length; None when at none.

    ``needed`` is the accuracy that counts as well enough.
    """

    schedule: str
    length: int | None
    needed: float


@dataclass
class Retrieval:
    """A finished (or interrupted) run.

    Attributes:
        model, data, protocol, versions: as results.json has them.
        cost: per schedule and length, how many contexts went through the model; 0 where another had the same tables.
        answers: schedules in the order they ran, lengths ascending.
        tables: by (schedule, length), the hash of the live rotary tables.
        baseline: the label that the others are compared with.
        threshold: share of the accuracy at the shortest length that counts as well enough.
    """

    model: dict[str, Any]
    data: dict[str, Any]
    protocol: dict[str, Any]
    versions: dict[str, str]
    cost: list[dict[str, Any]]
    answers: list[Answer]
    tables: dict[tuple[str, int], str]
    baseline: str
    threshold: float

    @property
    def schedules(self) -> list[str]:
        """The labels, in the order they ran."""
        return list(dict.fromkeys(schedule for schedule, _ in self.tables))

    @property
    def lengths(self) -> list[int]:
        """Every length asked at, ascending."""
        return sorted({length for _, length in self.tables})

    @property
    def depths(self) -> list[float]:
        """Every depth, ascending."""
        return sorted({answer.depth for answer in self.answers})

    @property
    def trained_length(self) -> int | None:
        """The model's trained context, where known; plots mark it."""
        return self.model.get("trained_length")

    @property
    def rows(self) -> list[Row]:
        """Per schedule and length, one over all depths and one for each."""
        return [self._row(*key, depth) for key in self.tables for depth in (None, *self.depths)]

    @property
    def paired(self) -> list[Paired]:
        """Every schedule against the baseline at every length that both have."""
        others = [key for key in self.tables if key[0] != self.baseline]
        return [self._pair(*key) for key in others if (self.baseline, key[1]) in self.tables]

    @property
    def effective(self) -> list[Effective]:
        """The effective length of every schedule.

        As in NoLiMa (Modarressi et al. 2025, arXiv:2502.05167) well enough is a share of what can be had at a short
        length. One bar for all the schedules: ``threshold`` times the best accuracy at the shortest length, so that a
        schedule that does badly everywhere does not count as good to the end.
        """
        overall = {(row.schedule, row.length): row.accuracy for row in self.rows if row.depth is None}
        best = max((overall.get((schedule, self.lengths[0]), 0.0) for schedule in self.schedules), default=0.0)
        return [Effective(each, self._reach(overall, each, self.threshold * best), self.threshold * best)
                for each in self.schedules]  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """results.json as plain data."""
        return {
            "schema": SCHEMA,
            "kind": "retrieval",
            **{name: getattr(self, name) for name in ("model", "data", "protocol", "versions", "cost")},
            **{name: [asdict(each) for each in getattr(self, name)] for name in ("rows", "paired", "effective")},
        }

    def to_markdown(self) -> str:
        """Accuracy and answer NLL per schedule and length, the paired change, and how it was measured."""
        overall = [row for row in self.rows if row.depth is None]
        reach = {each.schedule: "-" if each.length is None else f"{each.length:,}" for each in self.effective}
        accuracy = {(row.schedule, row.length): _accuracy_cell(row) for row in overall}
        nll = {(row.schedule, row.length): _nll_cell(row) for row in overall}
        parts = [self._table("accuracy", accuracy, self.schedules, ("effective length", reach))]
        parts += ["NLL of the whole answer (nats):", self._table("answer NLL", nll, self.schedules)]
        if self.paired:
            others = [label for label in self.schedules if label != self.baseline]
            change = {(pair.schedule, pair.length): _change_cell(pair) for pair in self.paired}
            delta = {(pair.schedule, pair.length): _delta_cell(pair) for pair in self.paired}
            parts += [f"Questions gained and lost against {escaped(self.baseline)} (exact McNemar p):"]
            parts += [self._table("gained, lost", change, others)]
            parts += [f"Change in answer NLL against {escaped(self.baseline)} on the same questions (nats):"]
            parts += [self._table("change", delta, others)]
        return "\n\n".join([*parts, self.protocol_line()])

    def protocol_line(self) -> str:
        """How the numbers were made, in a few sentences."""
        protocol = self.protocol
        joined = "" if protocol["task"] == "passkey" else " (questions of one prompt taken as independent)"
        return (
            f"protocol {protocol['task']}: {protocol['holds']}; {self._prompts()}, seed {protocol['seed']}, "
            f"{protocol['digits']} digits, {'BOS first' if protocol['has_bos'] else 'no BOS'}, "
            f"filler {escaped(self.data['source'])}, {self.model['dtype']}. An answer counts when every token of it is "
            f"ranked first (greedy decoding would write it); brackets are Wilson 95% intervals{joined}, ± is a 95% t "
            f"interval over prompts. {self._bar()}. Prompts sha256 {self.data['sha256'][:12]}"
        )

    def to_csv(self) -> str:
        """One line per schedule, length and depth (empty over all depths)."""
        return _csv(Row, self.rows)

    def plot(self, path: str | Path | None = None) -> Figure:
        """Heat maps of accuracy and answer NLL by length and depth, one column per schedule: a matplotlib ``Figure``.

        Args:
            path: an image file to write it to, too; png, svg or pdf.

        Raises:
            RopescaleError: matplotlib is not installed.
            CheckpointError: the file cannot be written.
        """
        from .plots import heat_maps

        return heat_maps(self, path)

    def save(self, out: str | Path) -> Path:
        """Writes results.json, results.csv, answers.csv, retrieval.png and REPORT.md into ``out`` and returns it.

        Without matplotlib everything but the picture is written, and a line on stderr says so.

        Raises:
            CheckpointError: the folder cannot be written, or a file in it is not what such a run wrote.
        """
        folder, there = opened_folder(out, "retrieval")
        with folders.kept(folder):
            folder.mkdir(parents=True, exist_ok=True)
            book = folders.Book(folder, self.to_dict(), there)
            book.write({"results.csv": self.to_csv(), "answers.csv": _csv(Answer, self.answers)})
            plots = self._plots()
            book.write({**plots, "REPORT.md": self._report(bool(plots))})
            book.close()
        return folder

    # --- reductions ---

    def _row(self, schedule: str, length: int, depth: float | None) -> Row:
        asked = [answer for answer in self._asked(schedule, length) if depth is None or answer.depth == depth]
        correct = sum(answer.correct for answer in asked)
        low, high = wilson(correct, len(asked))
        nll = _by_prompt((answer.prompt, answer.nll) for answer in asked)
        return Row(
            schedule=schedule,
            table_sha256=self.tables[schedule, length],
            length=length,
            depth=depth,
            answers=len(asked),
            correct=correct,
            accuracy=correct / len(asked),
            accuracy_low=low,
            accuracy_high=high,
            answer_nll=nll.mean,
            answer_nll_low=nll.low,
            answer_nll_high=nll.high,
        )

    def _pair(self, schedule: str, length: int) -> Paired:
        pairs = list(zip(self._asked(schedule, length), self._asked(self.baseline, length), strict=True))
        gained = sum(one.correct and not base.correct for one, base in pairs)
        lost = sum(base.correct and not one.correct for one, base in pairs)
        nll = _by_prompt((one.prompt, one.nll - base.nll) for one, base in pairs)
        return Paired(
            schedule=schedule,
            baseline=self.baseline,
            length=length,
            answers=len(pairs),
            gained=gained,
            lost=lost,
            delta_accuracy=(gained - lost) / len(pairs),
            p_value=mcnemar(gained, lost),
            delta_nll=nll.mean,
            low=nll.low,
            high=nll.high,
        )

    def _asked(self, schedule: str, length: int) -> list[Answer]:
        return self._groups.get((schedule, length), [])

    @cached_property
    def _groups(self) -> dict[tuple[str, int], list[Answer]]:
        groups: dict[tuple[str, int], list[Answer]] = {}
        for answer in self.answers:
            groups.setdefault((answer.schedule, answer.length), []).append(answer)
        return groups

    def _reach(self, overall: dict[tuple[str, int], float], schedule: str, needed: float) -> int | None:
        """Up to the first length that is not good enough, or was not reached before the run stopped."""
        reached = None
        for length in self.lengths:
            if not 0 < needed <= overall.get((schedule, length), -1.0) + 1e-12:
                break
            reached = length
        return reached

    # --- text ---

    def _prompts(self) -> str:
        depths = ", ".join(f"{depth:.3g}" for depth in self.protocol["depths"])
        trials = self.protocol["trials"]
        count = f"{trials} prompt{'s' * (trials != 1)} of each length"
        return f"{count} and depth ({depths})" if self.protocol["task"] == "passkey" else f"{count} (depths {depths})"

    def _bar(self) -> str:
        """What the effective length means here."""
        shortest, needed = self.lengths[0], self.effective[0].needed
        if not needed:
            return f"No schedule finds anything at {shortest:,} tokens, so none has an effective length"
        share = f"{self.threshold:g} of the best at {shortest:,} tokens"
        return f"Effective length: the longest up to which accuracy is at least {needed:.3g} at every length, {share}"

    def _table(
        self, corner: str, cells: dict[tuple[str, int], str], labels: Sequence[str],
        last: tuple[str, dict[str, str]] | None = None,
    ) -> str:  # fmt: skip
        header = [corner, *(f"{length:,}" for length in self.lengths), *([last[0]] if last else [])]
        added = {label: [last[1][label]] if last else [] for label in labels}
        rows = [[escaped(label), *(cells.get((label, n), "") for n in self.lengths), *added[label]] for label in labels]
        return markdown(header, rows, right=range(1, len(header)))

    def _depth_tables(self) -> str:
        rows = {(row.schedule, row.length, row.depth): row for row in self.rows}
        header = ["depth", *(f"{length:,}" for length in self.lengths)]
        tables = []
        for schedule in self.schedules:
            found = [[rows.get((schedule, length, depth)) for length in self.lengths] for depth in self.depths]
            body = [[f"{depth:.3g}", *("" if row is None else _both_cell(row) for row in line)]
                    for depth, line in zip(self.depths, found)]  # fmt: skip
            tables.append(f"### {escaped(schedule)}\n\n{markdown(header, body, right=range(1, len(header)))}")
        return "\n\n".join(["## By depth", "Accuracy with its Wilson 95% interval, and the answer's NLL.", *tables])

    def _plots(self) -> dict[str, bytes]:
        """The picture, as a file; none where it cannot be drawn, and a line on stderr says why."""
        try:
            return {"retrieval.png": drawn(self.plot)}
        except RopescaleError as error:
            print(f"note: no picture written; {error}", file=sys.stderr)
            return {}

    def _report(self, plotted: bool) -> str:
        image = "![Accuracy and answer NLL by length and depth](retrieval.png)\n\n" if plotted else ""
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        model = f"Model: {escaped(self.model['path'])} ({self.model['parameters']:,} parameters)."
        odd = self.data["not_retokenized"]
        which = (
            f"{odd} of {self.data['documents']} prompts tokenize otherwise" if odd else "Every prompt tokenizes alike"
        )
        ids = f"{which} when its text is tokenized in one piece; the ids of the pieces were used."
        heading = f"# Retrieval ({self.protocol['task']}): {escaped(Path(self.model['path']).name)}"
        parts = [heading, self.to_markdown(), f"{image}{self._depth_tables()}", f"{ids}\n\n{model}\n{versions}."]
        return "\n\n".join(parts) + "\n"


def retrieval_folder(out: str | Path) -> Path:
    """The folder that a run will be written into, or a refusal before hours of work.

    Raises:
        CheckpointError: it cannot be written, or holds something that would be lost: files that no run wrote, or the
            results of a perplexity run.
    """
    return opened_folder(out, "retrieval")[0]


def _by_prompt(values: Iterable[tuple[int, float]]) -> Any:
    """The mean over questions and its interval over prompts, whose questions are not independent."""
    groups: dict[int, list[float]] = {}
    for prompt, value in values:
        groups.setdefault(prompt, []).append(value)
    return ratio([sum(group) for group in groups.values()], [len(group) for group in groups.values()])


def _accuracy_cell(row: Row) -> str:
    return f"{row.accuracy:.2f} [{row.accuracy_low:.2f}, {row.accuracy_high:.2f}]"


def _nll_cell(row: Row) -> str:
    return _with_half(f"{row.answer_nll:#.4g}".rstrip("."), row.answer_nll_low, row.answer_nll_high)


def _both_cell(row: Row) -> str:
    return f"{_accuracy_cell(row)} {row.answer_nll:.2f}"


def _change_cell(pair: Paired) -> str:
    return f"+{pair.gained} −{pair.lost} (p = {pair.p_value:.2g})"


def _delta_cell(pair: Paired) -> str:
    return _with_half(f"{pair.delta_nll:+.3f}", pair.low, pair.high)


def _with_half(figure: str, low: float | None, high: float | None) -> str:
    return figure if low is None or high is None else f"{figure} ± {(high - low) / 2:.2g}"


def _csv(kind: type, rows: Iterable[Any]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, list(kind.__dataclass_fields__), lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    return out.getvalue()
