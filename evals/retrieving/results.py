"""The result of a retrieval run: accuracy, paired loss, effective length, and the files."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from ...files import Contents
from ...output.formatting import Page, escaped, visible
from ..checking import Count, Length, Parsed, Share
from ..facts import Key
from ..metrics.base import Metric, Picture
from ..metrics.cells import SENTENCE, change_cell, interval_cell, table
from ..metrics.drawing import Curves
from ..metrics.verdicts import effect, together, too_few
from ..results.saving import Saved, csv_file
from ..statistics.intervals import LEAST_DOCUMENTS, PERCENT, Average, Estimate, average, familywise, ratio, wilson
from .plots import heat_maps
from .prompt_set import FILE
from .prompts import DIGITS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RELATIVE = 0.85
"""The share of the baseline's score at the shortest length that is required up to the effective length."""

CHANCE = math.log(9) + (DIGITS - 1) * math.log(10)
"""The NLL in nats of a uniform guess among all possible keys, which have no leading 0."""


def share_found(text: str, answers: Sequence[str], any_of: bool = False) -> float:
    """Returns the share of the answers found in a generated text, ignoring case; with ``any_of``, 1 if any is found.

    The result is that of RULER's ``string_match_all``, or with ``any_of`` of ``string_match_part``, for one prompt
    (NVIDIA/RULER, ``scripts/eval``), but as a share instead of a percentage.
    """
    written = re.sub(r"[\x00-\x1f]", "\n", text.strip()).strip().lower()
    found = [float(answer.lower() in written) for answer in answers]
    return max(found) if any_of else sum(found) / len(found)


@dataclass(frozen=True)
class Answer:
    """The answer to one prompt under one schedule.

    Attributes:
        schedule: the schedule's label.
        length: the number of positions of the prompt with BOS and the answer; for a prompt from a file, the length it
            was assigned to.
        task: the name of the task.
        depth: the requested depth; None for a prompt from a file.
        prompt: the number of the prompt among the prompts of this length.
        position: the number of positions before the key; None for a prompt from a file.
        answer: the digits, or the text that is scored in place.
        tokens: the number of tokens of the answer.
        correct: whether every token of the answer is ranked first in place, so that greedy decoding would write it.
        score: 1 if ``correct``, else 0; for a prompt from a file, the share of its answers in the generated text.
        nll: the NLL of the whole answer in nats; the sum of the NLLs if several answers are scored separately.
        generated: the text that greedy decoding wrote; None without generation.
    """

    schedule: str
    length: int
    task: str
    depth: float | None
    prompt: int
    position: int | None
    answer: str
    tokens: int
    correct: bool
    score: float
    nll: float
    generated: str | None


@dataclass(frozen=True)
class AccuracyRow:
    """The accuracy and answer NLL of one schedule at one length, for one depth or task, or for all of them (None).

    ``accuracy`` is the mean score, or for several tasks the mean of the tasks' means. ``tasks`` is the number of tasks
    with prompts at this length. ``accuracy_low`` and ``accuracy_high`` are Wilson's 95% interval, which is too wide if
    scores are between 0 and 1. The interval of the NLL is Student's t over prompts, or None with fewer than five
    prompts.
    """

    schedule: str
    table_sha256: str
    length: Length
    task: str | None
    tasks: Count
    depth: Share | None
    prompts: Count
    accuracy: Share
    accuracy_low: Share
    accuracy_high: Share
    answer_nll: float
    answer_nll_low: float | None
    answer_nll_high: float | None

    @property
    def is_overall(self) -> bool:
        """Whether the row covers all prompts of its length."""
        return self.depth is None and self.task is None

    @property
    def part(self) -> str:
        """The row's task or depth, or "all" for all prompts."""
        return self.task or ("all" if self.depth is None else f"{100 * self.depth:.3g}%")


@dataclass(frozen=True)
class PairedAnswersRow:
    """The change of the answer NLL against the baseline, on the same prompts of one length.

    ``delta_nll`` is the mean NLL of the schedule minus that of the baseline, in nats. The intervals over ``prompts``
    hold for all ``comparisons`` of a length together, one per schedule. There is none with too few prompts for a
    conclusion.
    """

    schedule: str
    baseline: str
    length: Length
    prompts: Count
    comparisons: Count
    delta_nll: float
    low: float | None
    high: float | None

    @property
    def change(self) -> Estimate:
        """The change with its interval."""
        return Estimate(self.delta_nll, self.low, self.high)


@dataclass(frozen=True)
class EffectiveRow:
    """The longest length up to which a schedule's score reaches a threshold at every length, or None.

    The threshold is ``needed``, a share of the baseline's score at the shortest length (0 if that score is 0).
    """

    schedule: str
    length: Length | None
    needed: Share


def draw(run: Retrieval) -> Figure:
    """Draws heat maps of accuracy and answer NLL by length and depth or task."""
    return heat_maps_of(run.rows, vars(run))


def heat_maps_of(rows: Sequence[AccuracyRow], about: Parsed) -> Figure:
    """Draws the heat maps of these rows.

    Args:
        about: the model, the data and the protocol of the run, as in results.json.
    """
    model = about["model"]
    protocol = about["protocol"]
    count = about["data"]["documents"]
    title = f"Retrieval ({protocol['task']}): {Path(model['path']).name}\n{count:,} prompts"
    shown = [row for row in rows if not row.is_overall] or rows
    cells = {(row.schedule, row.part, row.length): (row.accuracy, row.answer_nll) for row in shown}
    names = protocol.get("named", {})
    return heat_maps(cells, lambda label: visible(names.get(label, label)), model.get("trained_length") or 0, title)


class Accuracy(Metric["Retrieval", AccuracyRow]):
    """The accuracy and answer NLL of every schedule."""

    row = AccuracyRow
    key = "rows"
    picture = Picture("retrieval.png", "Accuracy and answer NLL by length and depth", draw)

    def reduce(self, stored: Retrieval) -> list[AccuracyRow]:
        """Returns for each schedule and length one row over all prompts, and one for each depth or task."""
        depths = sorted({answer.depth for answer in stored.answers if answer.depth is not None})
        parts: list[tuple[str | None, float | None]] = [(None, None)]
        parts += [(None, depth) for depth in depths]
        parts += [(task, None) for task in stored.tasks]
        return [row for key in stored.tables for part in parts for row in _accuracy(stored, *key, *part)]

    def to_markdown(self, stored: Retrieval) -> Page:
        """Returns a table of accuracies and a table of NLLs, over all depths or tasks."""
        overall = [row for row in self.rows(stored) if row.is_overall]
        effective = EFFECTIVE.rows(stored)
        tasks = stored.tasks
        from_file = stored.is_from_file
        names = [stored.markdown_name(row.schedule) for row in effective]
        losses = []
        for row in overall:
            nll = interval_cell(row.answer_nll, row.answer_nll_low, row.answer_nll_high)
            losses.append((stored.named(row.schedule), row.length, nll))
        parts = []
        if tasks:
            fewer = {row.length: row.tasks for row in overall if row.tasks < len(tasks)}
            at = "".join(f"; {count} at {length:,}" for length, count in fewer.items())
            parts.append(f"Mean over {len(tasks)} tasks ({', '.join(map(escaped, tasks))}){at}:")
        parts += stored.main_table()
        reached = [f"{row.length:,}" if row.length else "none" for row in effective]
        parts.append(f"Effective length: {', '.join(map(' '.join, zip(names, reached)))}.")
        chance = "" if from_file else f"; chance, any number of {DIGITS} digits, is {CHANCE:.2f}"
        parts.append(f"NLL of the whole answer in place (nats{chance}):")
        parts.append(table("answer NLL", losses))
        return parts


class PairedLoss(Metric["Retrieval", PairedAnswersRow]):
    """The paired change of the answer NLL against the baseline."""

    row = PairedAnswersRow
    key = "paired"

    def reduce(self, stored: Retrieval) -> list[PairedAnswersRow]:
        """Returns one row for each schedule except the baseline and each length that both have."""
        baseline = stored.baseline
        tables = stored.tables
        found = [key for key in tables if key[0] != baseline and (baseline, key[1]) in tables]
        comparisons = len({schedule for schedule, _ in found})
        rows = []
        for schedule, length in found:
            nll = stored.change(schedule, length, comparisons)
            figures = (len(stored.by_length[schedule, length]), comparisons, nll.mean, nll.low, nll.high)
            rows.append(PairedAnswersRow(schedule, baseline, length, *figures))
        return rows

    def to_markdown(self, stored: Retrieval) -> Page:
        """Returns a table of the changes."""
        rows = self.rows(stored)
        if not rows:
            return []
        cells = [(stored.named(row.schedule), row.length, change_cell(row.change, SENTENCE)) for row in rows]
        what = f"on the same prompts (nats; {together(rows[0].comparisons)} at each length)"
        return [f"Change in answer NLL against {stored.markdown_name(stored.baseline)} {what}:", table("change", cells)]


class EffectiveLength(Metric["Retrieval", EffectiveRow]):
    """The effective length of every schedule.

    The required score is a share of the model's own score at the shortest length (as in NoLiMa, Modarressi et al. 2025,
    arXiv:2502.05167). For all schedules, the model's own score is that of the baseline, so a schedule that fails
    everywhere has no effective length.
    """

    row = EffectiveRow
    key = "effective"

    def reduce(self, stored: Retrieval) -> list[EffectiveRow]:
        """Returns one row per schedule."""
        overall = {(row.schedule, row.length): row.accuracy for row in ACCURACY.rows(stored) if row.is_overall}

        needed = RELATIVE * overall.get((stored.baseline, min(stored.lengths, default=0)), 0.0)
        rows = []
        for label in stored.schedules:
            reached = None
            for length in stored.lengths:  # up to the first length that has a lower score or was not measured
                if not 0 < needed <= overall.get((label, length), -1.0) + 1e-12:
                    break
                reached = length
            rows.append(EffectiveRow(label, reached, needed))
        return rows


ACCURACY = Accuracy()
PAIRED = PairedLoss()
EFFECTIVE = EffectiveLength()


def _accuracy(
    stored: Retrieval, schedule: str, length: int, task: str | None, depth: float | None
) -> list[AccuracyRow]:
    """Returns the row for one task or depth, or for all answers; [] if there are no answers.

    The interval of a mean over T tasks is computed for ``n = T^2 / sum 1/n_t`` answers, whose mean has the same
    variance.
    """
    scores: dict[str, list[Fraction]] = {}
    losses: list[float] = []
    for answer in stored.by_length[schedule, length]:
        if task in (None, answer.task) and depth in (None, answer.depth):
            scores.setdefault(answer.task, []).append(Fraction(answer.score))
            losses.append(answer.nll)
    if not losses:
        return []
    count = len(scores) ** 2 / sum(Fraction(1, len(of_task)) for of_task in scores.values())
    accuracy = sum(sum(of_task) / len(of_task) for of_task in scores.values()) / len(scores)
    low, high = wilson(float(accuracy * count), float(count))
    nll = ratio(losses, [1] * len(losses)).within(0)
    place = (schedule, stored.tables[schedule, length], length, task, len(scores), depth, len(losses))
    return [AccuracyRow(*place, float(accuracy), low, high, nll.mean, nll.low, nll.high)]


def accuracy_cell(row: AccuracyRow) -> str:
    """Formats an accuracy with its interval."""
    return f"{row.accuracy:.2f} ({row.accuracy_low:.2f} to {row.accuracy_high:.2f})"


@dataclass(repr=False)
class Retrieval(Saved):
    """The result of a finished or interrupted run.

    Attributes:
        answers: the answers, with schedules in the order they ran, and lengths ascending.
        tables: the hash of the live rotary tables, by (schedule, length).
        baseline: the label of the schedule that all other schedules are compared with.
    """

    kind: ClassVar[str] = "retrieval"
    metrics = (ACCURACY, PAIRED, EFFECTIVE)

    answers: list[Answer]
    tables: dict[Key, str]
    baseline: str

    @property
    def rows(self) -> list[AccuracyRow]:
        """One row over all prompts for each schedule and length, and one for each depth or task."""
        return ACCURACY.rows(self)

    @property
    def paired(self) -> list[PairedAnswersRow]:
        """The change of every schedule against the baseline, at every length that both have."""
        return PAIRED.rows(self)

    @property
    def effective(self) -> list[EffectiveRow]:
        """The effective length of every schedule."""
        return EFFECTIVE.rows(self)

    def change(self, schedule: str, length: int, comparisons: int) -> Average:
        """Returns the answer NLL of a schedule minus that of the baseline, on the same prompts; the intervals of this
        many comparisons hold together."""
        pairs = zip(self.by_length[schedule, length], self.by_length[self.baseline, length], strict=True)
        changes = [one.nll - base.nll for one, base in pairs]
        return average(changes, [1] * len(changes), familywise(comparisons))

    @property
    def schedules(self) -> list[str]:
        """The labels of the schedules, in the order they ran."""
        return list(dict.fromkeys(schedule for schedule, _ in self.tables))

    @property
    def lengths(self) -> list[int]:
        """The lengths, ascending."""
        return sorted({length for _, length in self.tables})

    @property
    def is_from_file(self) -> bool:
        """Whether the prompts were read from a file, so that answers are also generated."""
        return self.protocol["task"] == FILE

    @property
    def tasks(self) -> list[str]:
        """The tasks of prompts from files if there are several, else empty."""
        found = sorted({answer.task for answer in self.answers})
        return found if len(found) > 1 else []

    @cached_property
    def by_length(self) -> dict[Key, list[Answer]]:
        """The answers of each schedule and length."""
        groups = {key: [] for key in self.tables}
        for answer in self.answers:
            groups[answer.schedule, answer.length].append(answer)
        return groups

    def tables_of_metrics(self) -> Page:
        """Returns the paragraphs and tables of every metric, then a table per schedule by depth or task."""
        parts = [row for row in self.rows if not row.is_overall]
        if not parts:
            return super().tables_of_metrics()
        what = "task" if self.is_from_file else "depth"
        tables: Page = [f"## By {what}", f"Score with its Wilson {PERCENT} interval, and the answer's NLL."]
        for schedule in self.schedules:
            own = [row for row in parts if row.schedule == schedule]
            cells = [(row.part, row.length, f"{accuracy_cell(row)} {row.answer_nll:.2f}") for row in own]
            tables += [f"### {self.markdown_name(schedule)}", table(what, cells)]
        return [*super().tables_of_metrics(), *tables]

    def protocol_line(self) -> str:
        """Describes the protocol in sentences."""
        protocol = self.protocol
        baseline = self.markdown_name(self.baseline)
        shortest = f"{self.lengths[0]:,} tokens"
        how = f"{'BOS first' if protocol['has_bos'] else 'no BOS'}, {self.model['dtype']}"
        needed = self.effective[0].needed
        if self.is_from_file:
            tokens = ", ".join(f"{escaped(task)} {count}" for task, count in sorted(protocol["new_tokens"].items()))
            alone = ", ".join(map(escaped, protocol["alone"]))
            parts = [self._sample()]
            parts += [f"{count:,} {name.replace('_', ' ')}" for name, count in self.data.get("skipped", {}).items()]
            asked = (
                f"{'; '.join(parts)}; {how}. Score: the share of the answers that occur in the greedily decoded text, "
                f"ignoring case (generated tokens: {tokens}). NLL: of the answers in place, joined as in the prompt's "
                f"example{f'; scored separately and summed: {alone}' if alone else ''}"
            )
        else:
            asked = (
                f"one hidden number in each prompt; {self._sample()}, seed {protocol['seed']}, {how}. An answer counts "
                "when every token of it is ranked first (greedy decoding would write it)"
            )
        bar = f"{baseline} finds nothing at {shortest}, so there is no relative effective length"
        if needed:
            bar = "Effective length: the longest up to which accuracy is at least "
            bar += f"{needed:.3g} at every length, {RELATIVE:.0%} of that of {baseline} at {shortest}"
        return (
            f"{asked}. Scores have Wilson {PERCENT} intervals, losses {PERCENT} t intervals over prompts "
            f"({LEAST_DOCUMENTS} or more). {bar}. Prompts sha256 {self.data['sha256'][:12]}"
        )

    def main_table(self) -> Page:
        """Returns the table of accuracies over all depths or tasks."""
        corner = "score" if self.is_from_file else "accuracy"
        overall = [row for row in self.rows if row.is_overall]
        return [table(corner, [(self.named(row.schedule), row.length, accuracy_cell(row)) for row in overall])]

    def sentences(self) -> list[str]:
        """Describes the accuracies, and the largest decrease of the answers' loss at the longest length."""
        said = self._answered()
        longest = self.lengths[-1]
        rows = [row for row in self.paired if row.length == longest]
        if not rows:
            return said
        few = too_few(rows[0].prompts, "prompts")
        changes = {row.schedule: self.change(row.schedule, longest, row.comparisons) for row in rows}
        label = min(changes, key=lambda label: (changes[label].sign != -1, changes[label].mean))
        where = f"at {longest:,} tokens"
        made = f"{self.markdown_name(label)} {effect(changes[label], 'gains', 'costs', where, 'nats per answer')}"
        return [*said, f"Against {self.markdown_name(self.baseline)}, {made}{f'; {few}' if few else ''}."]

    def _answered(self) -> list[str]:
        """Describes the accuracies of the best three schedules at the longest length."""
        overall = [row for row in self.rows if row.is_overall]
        if not any(row.accuracy for row in overall):
            return ["No answer is right, under any schedule or at any length."] if overall else []
        longest = max(row.length for row in overall)
        best = sorted((row for row in overall if row.length == longest), key=lambda row: -row.accuracy)[:3]
        parts = [f"{self.markdown_name(row.schedule)} answers {row.accuracy:.0%}" for row in best]
        many = f" (mean of {best[0].tasks} tasks)" if best[0].tasks > 1 else ""
        return [f"At {longest:,} tokens {', '.join(parts)}{many}."]

    def rests_on(self) -> str:
        """Describes the prompts and the level of the intervals."""
        loss = "The loss of an answer is minus the natural logarithm of its probability, in nats."
        return f"{self._sample()}; intervals: {PERCENT}. {loss}"

    def _sample(self) -> str:
        """Describes the prompts."""
        if self.is_from_file:
            return f"{self.data['documents']:,} prompts of {escaped(self.data['source'])}"
        depths = ", ".join(f"{depth:.3g}" for depth in self.protocol["depths"])
        trials = self.protocol["trials"]
        return f"{trials} prompt{'s' * (trials != 1)} of each length and depth ({depths})"

    y = "score"

    def _curves(self) -> Curves:
        curves = {schedule: [] for schedule in self.schedules}
        for row in self.rows:
            if row.is_overall:
                curves[row.schedule].append((row.length, row.accuracy, row.accuracy_low, row.accuracy_high))
        return curves

    def _other_files(self) -> Contents:
        # JSON keeps each answer on one line
        rows = [replace(each, generated=each.generated and json.dumps(each.generated)) for each in self.answers]
        return {"answers.csv": csv_file(Answer, rows)}

    def _heading(self) -> str:
        return f"Retrieval ({self.protocol['task']})"

    def _source(self) -> str:
        return ""
