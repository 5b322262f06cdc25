"""The result of a retrieval run: accuracy, gains against the baseline, effective length, and the files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from ...output.formatting import escaped, markdown
from ..checking import Count, Length
from ..metrics.base import Metric, Picture
from ..metrics.cells import NO_INTERVAL, leans, misleads, table
from ..metrics.stored import AS_IS
from ..results.saving import Saved, csv_file
from ..statistics.intervals import LEAST_DOCUMENTS, PERCENT, Estimate, mcnemar, ratio, wilson
from . import plots
from .answers import AccuracyRow, Answer, StoredAnswers

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def answered(rows: Iterable[AccuracyRow], names: Mapping[str, str]) -> list[str]:
    """Describes the accuracies of the best three schedules at the longest length.

    Args:
        names: the short names of labels.
    """
    overall = [row for row in rows if row.is_overall]
    if not any(row.accuracy for row in overall):
        return ["No schedule answers anything at any length."] if overall else []
    longest = max(row.length for row in overall)
    best = sorted((row for row in overall if row.length == longest), key=lambda row: -row.accuracy)[:3]
    parts = [f"{names.get(row.schedule, row.schedule)} answers {row.accuracy:.0%}" for row in best]
    many = f" (mean of {best[0].tasks} tasks)" if best[0].tasks > 1 else ""
    return [f"At {longest:,} tokens {', '.join(parts)}{many}."]


@dataclass(frozen=True)
class GainsRow:
    """The change of a schedule against the baseline on the same questions of one length, for one task or all (None).

    Attributes:
        gained: the number of questions with a higher score under the schedule.
        lost: the number of questions with a higher score under the baseline.
        delta_accuracy: the mean score of the schedule minus the baseline's, over all these questions.
        p_value: the two-sided p of the exact McNemar test (a sign test on the questions that differ).
        delta_nll, low, high: the mean answer NLL of the schedule minus the baseline's, in nats, and its 95% interval
            over prompts.
    """

    schedule: str
    baseline: str
    length: Length
    task: str | None
    answers: Count
    gained: Count
    lost: Count
    delta_accuracy: float
    p_value: float
    delta_nll: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class EffectiveRow:
    """The longest length up to which a schedule meets the threshold at every length; None without one.

    ``needed`` is the required accuracy. ``ruler`` is the length by RULER's own threshold of 0.856; None for the
    generated tasks.
    """

    schedule: str
    length: Length | None
    needed: float
    ruler: Length | None


def draw(asked: StoredAnswers) -> Figure:
    """Draws heat maps of accuracy and answer NLL by length and depth, one column per schedule."""
    return plots.draw(asked, ACCURACY.rows(asked))


class Accuracy(Metric[StoredAnswers, AccuracyRow]):
    """The accuracy and answer NLL of every schedule."""

    row, key = AccuracyRow, "rows"
    picture = Picture("retrieval.png", "Accuracy and answer NLL by length and depth", draw)

    def reduce(self, stored: StoredAnswers) -> list[AccuracyRow]:
        """Returns, per schedule and length, one row over all questions, and one for each depth or task."""
        parts = [(None, None), *((None, depth) for depth in stored.depths), *((task, None) for task in stored.tasks)]
        found = (_accuracy(stored, *key, *part) for key in stored.tables for part in parts)
        return [row for row in found if row is not None]

    def to_markdown(self, stored: StoredAnswers) -> list[str]:
        """Returns a table of accuracies and one of NLLs, over all depths."""
        overall = [row for row in self.rows(stored) if row.is_overall]
        reach = {row.schedule: "-" if row.length is None else f"{row.length:,}" for row in EFFECTIVE.rows(stored)}
        accuracy = {(row.schedule, row.length): accuracy_cell(row) for row in overall}
        nll = {
            (row.schedule, row.length): _around(row.answer_nll, row.answer_nll_low, row.answer_nll_high, "#.4g")
            for row in overall
        }
        labels, about, by_ruler, of_tasks = stored.schedules, "in place (nats)", [], []
        if stored.chance is not None:
            labels, about = [*labels, _CHANCE], f"(nats; chance is any number of {stored.protocol['digits']} digits)"
            nll |= {(_CHANCE, length): f"{stored.chance:#.4g}" for length in stored.lengths}
        else:
            reached = [(stored.named(row.schedule), row.ruler) for row in EFFECTIVE.rows(stored)]
            words = ", ".join(f"{name} {f'{length:,}' if length else 'none'}" for name, length in reached)
            what = f"a score of {RULER:.1%}, Llama-2-7B-chat's at 4,096"
            by_ruler = [f"Effective length by RULER's threshold ({what}): {words}."]
        if stored.tasks:
            counts = {row.length: row.tasks for row in overall}
            fewer = [f"{count} at {length:,}" for length, count in counts.items() if count < len(stored.tasks)]
            names = ", ".join(map(escaped, stored.tasks))
            of_tasks = [f"Mean over {len(stored.tasks)} tasks ({names}){'; ' * bool(fewer)}{', '.join(fewer)}:"]
        return [
            *of_tasks,
            _table(stored, "accuracy" if stored.chance is not None else "score", accuracy, reach),
            *by_ruler,
            *_where_nothing_is_found(stored, overall),
            f"NLL of the whole answer {about}:",
            table(stored.lengths, "answer NLL", nll, labels, name=stored.named),
            *([by_part(stored)] if stored.tasks else []),
        ]


RULER = 0.856
"""RULER's threshold for an effective length: the score of Llama-2-7B-chat at 4,096 tokens (arXiv:2404.06654)."""

_CHANCE = "chance"
"""The last line of the table of NLLs."""


def _where_nothing_is_found(stored: StoredAnswers, rows: Sequence[AccuracyRow]) -> list[str]:
    """Explains a map without any answer: whether the unchanged model can do the task at all."""
    if any(row.accuracy for row in rows):
        return []
    trained, none = stored.trained_length, "No schedule answers anything"
    if trained is None:
        return [f"{none}, and the trained length of the model is not known."]
    within = [row for row in rows if row.schedule == AS_IS and row.length <= trained]
    if not within:
        return [
            f"{none}, and {AS_IS} was not asked within the {trained:,} tokens that it was trained at: whether it can "
            "do the task at all is not known. Add such a length."
        ]
    best = min(within, key=lambda row: row.answer_nll)
    lengths = ", ".join(f"{row.length:,}" for row in within)
    chance = "" if stored.chance is None else f", and chance {stored.chance:.4g}"
    return [
        f"{none}, and neither does the model as it is within the {trained:,} tokens that it was trained at (asked at "
        f"{lengths}; an answer costs it {best.answer_nll:.4g} nats at best{chance}), so "
        "the map of accuracy says nothing about the schedules."
    ]


class Gains(Metric[StoredAnswers, GainsRow]):
    """The paired change against the baseline."""

    row, key = GainsRow, "paired"

    def reduce(self, stored: StoredAnswers) -> list[GainsRow]:
        """Returns a row for every schedule except the baseline at every shared length, and one per task."""
        rows = []
        for schedule, length in stored.tables:
            if schedule != stored.baseline and (stored.baseline, length) in stored.tables:
                asked = {answer.task for answer in stored.by_length[stored.baseline, length]}
                tasks = [None, *(task for task in stored.tasks if task in asked)]
                rows += [_gains(stored, schedule, length, task) for task in tasks]
        return rows

    def to_markdown(self, stored: StoredAnswers) -> list[str]:
        """Returns the questions gained and lost, and the change in answer NLL."""
        rows = [row for row in self.rows(stored) if row.task is None]
        if not rows:
            return []
        change = {(row.schedule, row.length): f"+{row.gained} -{row.lost} (p = {row.p_value:.2g})" for row in rows}
        delta = {(row.schedule, row.length): _around(row.delta_nll, row.low, row.high, "+.3f") for row in rows}
        baseline = stored.markdown_name(stored.baseline)
        return [
            f"Questions gained and lost against {baseline} (exact McNemar p):",
            _table(stored, "gained, lost", change),
            f"Change in answer NLL against {baseline} on the same questions (nats):",
            _table(stored, "change", delta),
        ]


class EffectiveLength(Metric[StoredAnswers, EffectiveRow]):
    """The effective length of every schedule.

    As in NoLiMa (Modarressi et al. 2025, arXiv:2502.05167), the required accuracy is a share of that at a short length.
    It is the same for all schedules, ``threshold`` times the best accuracy at the shortest length, so that a schedule
    that fails everywhere has no effective length. RULER's threshold is the same for all models, so it means little for
    base models.
    """

    row, key = EffectiveRow, "effective"

    def reduce(self, stored: StoredAnswers) -> list[EffectiveRow]:
        """Returns one row per schedule."""
        overall = {(row.schedule, row.length): row.accuracy for row in ACCURACY.rows(stored) if row.is_overall}
        best = max((overall.get((schedule, stored.lengths[0]), 0.0) for schedule in stored.schedules), default=0.0)
        needed = stored.threshold * best
        return [
            EffectiveRow(
                schedule=each,
                length=_reach(stored, overall, each, needed),
                needed=needed,
                ruler=None if stored.chance is not None else _reach(stored, overall, each, RULER),
            )
            for each in stored.schedules
        ]


ACCURACY, GAINS, EFFECTIVE = Accuracy(), Gains(), EffectiveLength()

METRICS: tuple[Metric[StoredAnswers, Any], ...] = (ACCURACY, GAINS, EFFECTIVE)


def _accuracy(
    stored: StoredAnswers, schedule: str, length: int, task: str | None, depth: float | None
) -> AccuracyRow | None:
    """Returns the row over the answers of one task or depth, or over all; None without answers.

    The interval of a mean over T tasks is that of ``n = T^2 / sum 1/n_t`` answers, whose mean has the same variance.
    """
    of_all = stored.by_length[schedule, length]
    asked = [each for each in of_all if task in (None, each.task) and depth in (None, each.depth)]
    if not asked:
        return None
    by_task = [[Fraction(each.score) for each in asked if each.task == name] for name in {each.task for each in asked}]
    answers = len(by_task) ** 2 / sum(Fraction(1, len(scores)) for scores in by_task)
    accuracy = sum(sum(scores) / len(scores) for scores in by_task) / len(by_task)
    low, high = wilson(float(accuracy * answers), float(answers))
    nll = _by_prompt((each, each.nll) for each in asked).within(0)
    return AccuracyRow(
        schedule=schedule,
        table_sha256=stored.tables[schedule, length],
        length=length,
        task=task,
        tasks=len(by_task),
        depth=depth,
        answers=len(asked),
        correct=sum(each.score == 1 for each in asked),
        accuracy=float(accuracy),
        accuracy_low=low,
        accuracy_high=high,
        answer_nll=nll.mean,
        answer_nll_low=nll.low,
        answer_nll_high=nll.high,
    )


def _gains(stored: StoredAnswers, schedule: str, length: int, task: str | None) -> GainsRow:
    ours, theirs = stored.by_length[schedule, length], stored.by_length[stored.baseline, length]
    pairs = [pair for pair in zip(ours, theirs, strict=True) if task in (None, pair[0].task)]
    gained = sum(one.score > base.score for one, base in pairs)
    lost = sum(base.score > one.score for one, base in pairs)
    nll = _by_prompt((one, one.nll - base.nll) for one, base in pairs)
    return GainsRow(
        schedule=schedule,
        baseline=stored.baseline,
        length=length,
        task=task,
        answers=len(pairs),
        gained=gained,
        lost=lost,
        delta_accuracy=sum(one.score - base.score for one, base in pairs) / len(pairs),
        p_value=mcnemar(gained, lost),
        delta_nll=nll.mean,
        low=nll.low,
        high=nll.high,
    )


def _by_prompt(values: Iterable[tuple[Answer, float]]) -> Estimate:
    """Returns the mean over questions. Its interval is over prompts: questions of one prompt are not independent."""
    groups: dict[int, list[float]] = {}
    for answer, value in values:
        groups.setdefault(answer.prompt, []).append(value)
    return ratio([sum(group) for group in groups.values()], [len(group) for group in groups.values()])


def _reach(stored: StoredAnswers, overall: Mapping[tuple[str, int], float], schedule: str, needed: float) -> int | None:
    """Returns the last length before the first one that is not good enough or was not measured."""
    reached = None
    for length in stored.lengths:
        if not 0 < needed <= overall.get((schedule, length), -1.0) + 1e-12:
            break
        reached = length
    return reached


def _table(
    stored: StoredAnswers, corner: str, cells: Mapping[tuple[str, int], str], reach: Mapping[str, str] | None = None
) -> str:
    """Returns a table of the schedules that have cells."""
    labels = [label for label in stored.schedules if any(label == schedule for schedule, _ in cells)]
    return table(stored.lengths, corner, cells, labels, reach, stored.named)


def by_part(stored: StoredAnswers) -> str:
    """Returns a table for each schedule, with a line for each depth or task."""
    what, score = ("task", "Score") if stored.tasks else ("depth", "Accuracy")
    cells = {
        (
            row.schedule,
            row.length,
            row.task if stored.tasks else row.depth,
        ): f"{accuracy_cell(row)} {row.answer_nll:.2f}"
        for row in ACCURACY.rows(stored)
    }
    parts: Sequence[str | float] = stored.tasks or stored.depths
    names = [escaped(part) if isinstance(part, str) else f"{part:.3g}" for part in parts]
    header = [what, *(f"{length:,}" for length in stored.lengths)]
    tables = []
    for schedule in stored.schedules:
        body = [
            [name, *(cells.get((schedule, length, part), "") for length in stored.lengths)]
            for name, part in zip(names, parts, strict=True)
        ]
        tables.append(f"### {stored.markdown_name(schedule)}\n\n{markdown(header, body, right=range(1, len(header)))}")
    return "\n\n".join([f"## By {what}", f"{score} with its Wilson {PERCENT} interval, and the answer's NLL.", *tables])


def accuracy_cell(row: AccuracyRow) -> str:
    """Formats an accuracy with its interval."""
    return f"{row.accuracy:.2f} [{row.accuracy_low:.2f}, {row.accuracy_high:.2f}]"


def _around(value: float, low: float | None, high: float | None, form: str) -> str:
    figure = f"{value:{form}}".rstrip(".")
    if low is None or high is None:
        return f"{figure} {NO_INTERVAL}"
    half = f"{(high - low) / 2:.2g}"
    by_bounds = leans(value, low, high) or misleads(low, high, figure, half)
    return f"{figure} ({low:.3g} to {high:.3g})" if by_bounds else f"{figure} ± {half}"


_DEPENDENT = " (questions of one prompt taken as independent)"


@dataclass(repr=False)
class Retrieval(StoredAnswers, Saved):
    """A finished (or interrupted) run; :class:`.answers.StoredAnswers` has its attributes."""

    kind: ClassVar[str] = "retrieval"
    metrics = METRICS
    about = (*Saved.about, "cost")

    @property
    def rows(self) -> list[AccuracyRow]:
        """Per schedule and length, one row over all questions, and one for each depth or task."""
        return ACCURACY.rows(self)

    @property
    def paired(self) -> list[GainsRow]:
        """The change of every schedule against the baseline, at every length that both have."""
        return GAINS.rows(self)

    @property
    def effective(self) -> list[EffectiveRow]:
        """The effective length of every schedule."""
        return EFFECTIVE.rows(self)

    def protocol_line(self) -> str:
        """Returns sentences on the protocol."""
        protocol, dtype = self.protocol, self.model["dtype"]
        bos = "BOS first" if protocol["has_bos"] else "no BOS"
        joined = "" if protocol["task"] in ("passkey", "prompts") else _DEPENDENT
        if self.chance is None:
            tokens = ", ".join(f"{escaped(task)} {count}" for task, count in sorted(protocol["new_tokens"].items()))
            alone = ", ".join(map(escaped, protocol["alone"]))
            where = f"; several answers scored separately, their NLLs summed: {alone}" * bool(alone)
            left_out = self.data.get("skipped", {}).items()
            skipped = "".join(f"; {count:,} {name.replace('_', ' ')}" for name, count in left_out)
            how = (
                f"prompts of {escaped(self.data['source'])}{skipped}; {bos}, {dtype}. Score: the share of the "
                f"answers in the text of greedy decoding, ignoring case (tokens: {tokens}). NLL: of the answers in "
                f"place, joined like those of the example in the prompt{where}. Brackets"
            )
        else:
            how = (
                f"protocol {protocol['task']}: {protocol['holds']}; {self._prompts()}, seed {protocol['seed']}, "
                f"{protocol['digits']} digits, {bos}, filler {escaped(self.data['source'])}, {dtype}. An answer counts "
                "when every token of it is ranked first (greedy decoding would write it); brackets"
            )
        return (
            f"{how} are Wilson {PERCENT} intervals{joined}, ± is a {PERCENT} t interval over prompts "
            f"({LEAST_DOCUMENTS} or more). {self._bar()}. Prompts sha256 {self.data['sha256'][:12]}"
        )

    def sentences(self) -> list[str]:
        """Describes the accuracies at the longest length, and the clearest difference from the baseline."""
        said = answered(self.rows, self.short_names)
        rows = [row for row in self.paired if row.length == self.lengths[-1] and row.task is None]
        gains = [row for row in rows if row.p_value < 1]
        if gains and len(said) == 1:
            best = min(gains, key=lambda row: row.p_value)
            said.append(
                f"{self.named(best.schedule)} gains {best.gained} of {best.answers} questions over "
                f"{self.named(best.baseline)} and loses {best.lost} (exact McNemar p = {best.p_value:.2g})."
            )
        elif cheaper := [row for row in rows if row.low is not None and row.high is not None and row.high < 0]:
            best = min(cheaper, key=lambda row: row.delta_nll)
            said.append(
                f"At {best.length:,} tokens the answers cost {self.named(best.schedule)} {-best.delta_nll:.3g} nats "
                f"less than {self.named(best.baseline)} ({-cast(float, best.high):.3g} to "
                f"{-cast(float, best.low):.3g})."
            )
        return said

    def rests_on(self) -> str:
        """Describes the number of questions."""
        return f"{self._prompts()}; brackets are Wilson {PERCENT} intervals."

    def _summary(self) -> str:
        lengths = ", ".join(f"{length:,}" for length in self.lengths)
        asked = f"{self.protocol['task']}, {self.data['documents']} prompts"
        schedules = ", ".join(map(self.named, self.schedules))
        return f"{Path(self.model['path']).name}: {schedules}; at {lengths} tokens; {asked}"

    def _other_files(self) -> dict[str, bytes]:
        # JSON keeps each answer on one line
        texts = [None if each.generated is None else json.dumps(each.generated) for each in self.answers]
        written = [replace(each, generated=text) for each, text in zip(self.answers, texts, strict=True)]
        return {"answers.csv": csv_file(Answer, written)}

    def _heading(self) -> str:
        return f"Retrieval ({self.protocol['task']})"

    def _source(self) -> str:
        return ""

    def _details(self) -> str:
        if self.chance is None:  # tasks have their tables among the others
            return ""
        odd = self.data.get("not_retokenized", 0)
        alike = "Every prompt tokenizes alike"
        which = f"{odd} of {self.data['documents']} prompts tokenize differently" if odd else alike
        ids = f"{which} when its text is tokenized in one piece; the ids of the pieces were used."
        return f"{by_part(self)}\n\n{ids}"

    def _prompts(self) -> str:
        if self.chance is None:
            return f"{self.data['documents']:,} prompts of {escaped(self.data['source'])}"
        depths = ", ".join(f"{depth:.3g}" for depth in self.protocol["depths"])
        trials = self.protocol["trials"]
        count = f"{trials} prompt{'s' * (trials != 1)} of each length"
        return f"{count} and depth ({depths})" if self.protocol["task"] == "passkey" else f"{count} (depths {depths})"

    def _bar(self) -> str:
        """Describes the threshold of the effective length."""
        shortest, needed = self.lengths[0], self.effective[0].needed
        if not needed:
            return f"No schedule finds anything at {shortest:,} tokens, so none has an effective length"
        share = f"{self.threshold:g} of the best at {shortest:,} tokens"
        return f"Effective length: the longest up to which accuracy is at least {needed:.3g} at every length, {share}"
