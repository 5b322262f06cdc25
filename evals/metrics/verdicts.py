"""The comparisons that a run's sentences may draw, each with an interval that holds for all of them together.

Which schedule is best is known only after the run. So these are all that the sentences could compare whichever were
best: every pair of schedules at the longest length, the cost of every schedule within the trained length, and every
schedule against truncation at the longest length, on all tokens past the trained length and on far repeats.

Two models on the same tokens, and requirements such as ``yarn:factor=8 cost<=0.05 at 4k``, are judged by the same rule.
"""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations, groupby, product

from ...errors import DataError
from ...lengths import parse_length
from ...output.formatting import Page, brief, grid
from ..facts import AS_IS, TRUNCATION, Key
from ..statistics.intervals import CONCLUSIVE, PERCENT, Average, familywise
from .against_truncation import past
from .base import Metric, picked, rests_on
from .cells import change_cell, digits, exp, signed
from .far_repeats import distance_of, masks_of
from .paired import short_length
from .stored import Stored, Totals, sums_of

WHOLE, PAST, FAR = "all", "past the trained length", "far repeats"
"""The tokens of a comparison."""


@dataclass(frozen=True)
class VerdictRow:
    """The loss of ``schedule`` minus that of ``against`` on the same tokens at a length, in nats.

    ``mean`` is the difference in the average document: the mean over the ``documents`` with such tokens of each
    document's mean. Its interval holds for all ``comparisons`` of the run together; with too few documents for a
    verdict, the bounds are None. ``delta_nll`` is the difference over all tokens, in which a long document weighs more.
    ``agreeing`` documents have a difference with the sign of ``mean``.
    """

    schedule: str
    against: str
    length: int
    tokens: str
    mean: float
    low: float | None
    high: float | None
    delta_nll: float
    agreeing: int
    documents: int
    comparisons: int

    @property
    def change(self) -> Average:
        """The difference with its interval."""
        return Average(self.mean, self.low, self.high, None, self.delta_nll, self.agreeing, self.documents)


class Verdicts(Metric[Stored, VerdictRow]):
    """The comparisons that sentences may draw, by intervals that hold for all of them together."""

    row = VerdictRow
    key = "verdicts"

    def reduce(self, stored: Stored) -> list[VerdictRow]:
        """Returns a row for every comparison whose tokens any document has."""
        return rows_of(stored, _differences(stored), stored.groups)

    def to_markdown(self, stored: Stored) -> Page:
        """Returns the table of the comparisons with the best schedule, the baseline or truncation.

        Returns an empty list if there are no comparisons, or if the model is worse than a uniform guess.
        """
        rows = self.rows(stored)
        if not rows or worse_than_a_guess(stored):
            return []
        best = min(stored.ranked, key=lambda label: stored.totals(label, stored.lengths[-1]).mean)
        main = {best, stored.baseline, TRUNCATION}
        lines = []
        for row in rows:
            if main & {row.schedule, row.against}:
                names = [stored.markdown_name(label) for label in (row.schedule, row.against)]
                agreeing = f"{row.agreeing:,} of {row.documents:,}"
                over_all = signed(row.delta_nll)
                lines.append([*names, f"{row.length:,}", row.tokens, change_cell(row.change), agreeing, over_all])
        header = ["schedule", "against", "at", "tokens", "difference", "documents that agree", "over all tokens"]
        title = (
            "What the sentences compare: the difference in the average document (nats, below zero: the schedule is "
            f"better; {rests_on(stored)}; {_level(rows)}). The run compares any two schedules, each within the trained "
            "length, and each with truncation. Other tables have means over all tokens, and intervals that hold each "
            "by itself, so a difference may be shown there and undecided here."
        )
        return [title, grid(header, lines, right=(2, 4, 5, 6))]


METRIC = Verdicts()


Differences = dict[tuple[str, str, int, str], Totals]
"""Differences of losses by schedule, what it is compared with, length and tokens."""


def rows_of(stored: Stored, differences: Differences, groups: int = 1) -> list[VerdictRow]:
    """Returns a row for every difference whose tokens any document has, with intervals that hold together.

    Args:
        groups: the number of tables that show as many differences.
    """
    found = {place: change for place, change in differences.items() if any(change.counts)}
    comparisons = groups * len(found)
    rows = []
    for place, change in found.items():
        each = stored.average(*change, familywise(comparisons))
        figures = (each.mean, each.low, each.high, each.per_token, each.agreeing, each.documents)
        rows.append(VerdictRow(*place, *figures, comparisons))
    return rows


def _differences(stored: Stored) -> Differences:
    """Returns the differences of all comparisons."""
    longest = stored.lengths[-1]
    short = short_length(stored.lengths, stored.trained_length)
    labels = [label for label in stored.schedules if (label, longest) in stored.read_from]
    pairs = [(two, one, longest) for one, two in combinations(labels, 2)]
    if short not in (None, longest) and (stored.baseline, short) in stored.read_from:
        others = [label for label, length in stored.read_from if length == short and label != stored.baseline]
        pairs += [(label, stored.baseline, short) for label in others]
    found = {
        (one, other, length, WHOLE): stored.totals(one, length).minus(stored.totals(other, length))
        for one, other, length in pairs
    }
    last = stored.truncation
    if last and longest > last.length:
        masks = [mask[last.length - 1 :] for mask in masks_of(stored, distance_of(stored))]
        for label in labels:
            ours, theirs = past(stored, last, label, longest)
            found[label, TRUNCATION, longest, PAST] = sums_of(ours).minus(sums_of(theirs))
            if masks:
                far = sums_of(picked(ours, masks))
                cut_off = sums_of(picked(theirs, masks))
                found[label, TRUNCATION, longest, FAR] = far.minus(cut_off)
    return found


def change_of(stored: Stored, schedule: str, against: str, length: int | None, tokens: str = WHOLE) -> Average | None:
    """Returns the difference of a schedule's loss from another's, as verdicts use it; None if there is no such row."""
    for row in METRIC.rows(stored):
        if (row.length, row.tokens) == (length, tokens):
            if (row.schedule, row.against) == (schedule, against):
                return row.change
            if (row.schedule, row.against) == (against, schedule):
                return -row.change
    return None


# --- Shared by all conclusions


def too_few(documents: int, what: str = "documents", needed: int = CONCLUSIVE) -> str:
    """Returns a clause that there are too few documents for a conclusion; "" if there are enough.

    Args:
        what: the plural name of the documents.
        needed: how many are enough.
    """
    if documents >= needed:
        return ""
    return f"a verdict needs {needed} {what}, and there {'is' if documents == 1 else 'are'} {documents}"


def together(comparisons: int) -> str:
    """Describes the level at which all intervals hold together."""
    if comparisons == 1:
        return f"{PERCENT} intervals"
    return f"{PERCENT} intervals, wider because all {comparisons:,} of the run hold together"


def _level(rows: list[VerdictRow]) -> str:
    """Describes the level of the intervals, or says why there are none."""
    few = too_few(max(row.documents for row in rows))
    return f"no interval: {few}" if few else together(rows[0].comparisons)


NARROW = (0.01, 0.02, 0.05, 0.1)
"""The bounds in nats of which a sentence says that a difference is not larger."""


def effect(change: Average, better: str, worse: str, where: str, unit: str = "nats", first: bool = False) -> str:
    """Describes a difference: decided, not larger than a bound, undecided, or its mean alone without an interval.

    Args:
        better, worse: the verbs for a lower and for a higher loss.
        where: the length or the tokens, such as "at 2,048 tokens".
        first: whether it is the first of a text, which says what the numbers are.
    """
    direction = better if change.mean < 0 else worse
    counted = of_what = ""
    if change.documents > 1:
        of_what = " in the average document" if first else ""
        counted = f", in {change.agreeing:,} of {change.documents:,}{' documents' if first else ''},"
    size = -change if change.mean < 0 else change
    mean, *ends = _written(size.mean, size.low, size.high)
    interval = f" ({' to '.join(ends)})" if ends else ""
    factor = _factor(change.mean, mean) if first else ""
    found = f"{direction} {mean}{interval} {unit}{factor}{of_what}{counted} {where}"
    if change.low is None or change.high is None:
        return found if change.mean else f"changes nothing {where}"
    if change.sign:
        return found
    most = max(abs(change.low), abs(change.high))
    narrow = next((bound for bound in NARROW if most <= bound and change.mean * change.per_token >= 0), None)
    if narrow:
        return f"makes no difference larger than {narrow:g} {unit}{of_what} {where}"
    mean, low, high = _written(change.mean, change.low, change.high, sign="+")
    lower = f", {'lower' if change.mean < 0 else 'higher'}{counted[1:-1]}"
    whole = f", but {_written(change.per_token, change.low, sign='+')[0]} over all tokens"
    return (
        f"is undecided {where}: {mean} ({low} to {high}) {unit}{of_what}{lower}"
        f"{whole if change.mean * change.per_token < 0 else ''}"
    )


def _factor(nats: float, shown: str) -> str:
    """Describes a mean difference as a factor of perplexity, with the decimals that are shown of it."""
    _, _, decimals = shown.partition(".")
    factor = exp(abs(nats))
    return f" (a perplexity factor of {digits(factor, 4) if factor >= 1e6 else f'{factor:,.{len(decimals)}f}'})"


def _written(*values: float | None, sign: str = "") -> list[str]:
    """Formats numbers with the same decimals: two digits of their spread, and as many as show that none is zero."""
    known = [each for each in values if each is not None]
    spread = max(known) - min(known) or abs(known[0]) or 1.0
    decimals = max(1, 1 - math.floor(math.log10(spread)))
    while decimals < 6 and any(each and not round(each, decimals) for each in known):
        decimals += 1
    return [f"{each:{sign}.{decimals}f}" for each in known]


_ROUNDING = 0.001
"""Tolerance in nats above ln(vocabulary), for a model that predicts all tokens equally, with rounded logits."""


def worse_than_a_guess(stored: Stored) -> str:
    """Returns a warning if the unchanged model is worse than a uniform guess at the shortest length; else "".

    Also returns "" if the size of the vocabulary is unknown.
    """
    length = stored.lengths[0]
    if (AS_IS, length) not in stored.read_from:
        return ""
    totals = stored.totals(AS_IS, length)
    return guessing(totals.mean, length, stored.model.get("vocabulary")) if any(totals.counts) else ""


def guessing(nll: float, length: int, vocabulary: int | None) -> str:
    """Returns a warning if a loss exceeds that of a uniform guess, ln(vocabulary); else "".

    Args:
        nll: the unchanged model's loss in nats per token, up to ``length``; NaN if there is none.
        vocabulary: the number of tokens in the model's vocabulary; None if unknown.
    """
    if not vocabulary or not nll > math.log(vocabulary) + _ROUNDING:
        return ""
    figures = f"perplexity {digits(exp(nll), 4)} at {length:,} tokens, against {vocabulary:,}"
    return (
        f"As it is, the model predicts this text worse than a uniform guess over its {vocabulary:,} tokens "
        f"({figures}). The weights or the tokenizer may not be its own, so no figure here shows which schedule is "
        "better."
    )


# --- Two models


def between(after: Stored, before: Stored) -> list[VerdictRow]:
    """Returns the loss of one model minus another's, for every schedule that both have, at each length of both.

    A schedule is compared with that of the same name, and with those that have the same tables at the longest length.

    Raises:
        DataError: the two did not score the same tokens.
    """
    if not after.same_tokens(before):
        raise DataError("the two runs did not score the same tokens; measure both on the same text and lengths")
    lengths = [length for length in after.lengths if length in before.lengths]
    differences: Differences = {}
    for one, other in product(after.schedules, before.schedules):
        shared = [n for n in lengths if (one, n) in after.read_from and (other, n) in before.read_from]
        runs = [(after.read_from[one, n], before.read_from[other, n]) for n in shared[-1:]]
        if any(one == other or ours.table_sha256 == theirs.table_sha256 for ours, theirs in runs):
            for length in shared:
                differences[one, other, length, WHOLE] = after.totals(one, length).minus(before.totals(other, length))
    return rows_of(after, differences)


def of_two_models(after: Stored, before: Stored, names: tuple[str, str]) -> Page:
    """Returns a sentence for each pair of schedules, and the table of the differences at each length.

    Args:
        names: the names of the two runs, as Markdown.
    """
    rows = between(after, before)
    if not rows:
        return []
    few = too_few(max(row.documents for row in rows))
    lengths = sorted({row.length for row in rows})
    sentences = []
    lines = []
    for (one, other), group in groupby(rows, key=lambda row: (row.schedule, row.against)):
        own = {row.length: row for row in group}
        labels = [after.markdown_name(one), before.markdown_name(other)]
        effects = [
            effect(own[n].change, "gains", "costs", f"at {n:,} tokens", first=not sentences and n == max(own))
            for n in dict.fromkeys([max(own), min(own)])
        ]
        ours = f"{names[0]} ({labels[0]})"
        theirs = f"{names[1]} ({labels[1]})"
        sentences.append(f"Against {theirs}, {ours} {'; it '.join(effects)}{f' ({few})' if few else ''}.")
        cells = [change_cell(own[length].change) if length in own else "" for length in lengths]
        lines.append([*labels, *cells])
    title = (
        f"{names[0]} minus {names[1]} on the same tokens: the difference in the average document (nats, below zero: "
        f"{names[0]} is better; {rests_on(after)}; {_level(rows)}):"
    )
    header = [*names, *(f"{length:,}" for length in lengths)]
    return ["\n".join(sentences), title, grid(header, lines, right=range(2, len(header)))]


# --- Requirements, judged as verdicts are


_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_FORM = re.compile(rf"(.*\S)\s+(?:cost\s*<=\s*({_NUMBER})|gain\s*>=\s*({_NUMBER}))\s+at\s+(\S+)", re.ASCII | re.DOTALL)

_EXAMPLES = "'yarn:factor=8 cost<=0.05 at 4k' or 'yarn:factor=8 gain>=0.5 at 32k' (nats against as-is)"


@dataclass(frozen=True)
class Requirement:
    """The largest change of a schedule's loss from the unchanged model's at a length.

    Attributes:
        text: the requirement as it was written.
        most: the change in nats in the average document; a required gain is a change of at most minus the gain.
    """

    text: str
    schedule: str
    most: float
    length: int


def _required(stored: Stored, text: str) -> Requirement:
    """Reads ``SCHEDULE cost<=NATS at LENGTH`` or ``SCHEDULE gain>=NATS at LENGTH``.

    A schedule from a file may be named by its short name.

    Raises:
        DataError: the text has another form, or the schedule or the length was not measured.
    """
    found = _FORM.fullmatch(text.strip())
    if not found:
        raise DataError(f"the requirement {brief(text)} cannot be read; write it like {_EXAMPLES}", "require")
    name, cost, gain, length = found.groups()
    most = float(cost) if cost else -float(gain)
    labels = {stored.named(label): label for label in stored.schedules}
    wanted = Requirement(" ".join(text.split()), labels.get(name, name), most, parse_length(length))
    for label in (wanted.schedule, AS_IS):
        stored.refuse_unmeasured(label, wanted.length)
    return wanted


def unmet(stored: Stored, texts: Iterable[str]) -> list[str]:
    """Returns a line for every requirement that the measurement does not show, with what it shows.

    A requirement is shown if the whole interval of the change keeps it, and the mean over all tokens does, too. The
    intervals hold together with those of the verdicts, and there are none below ten documents.

    Raises:
        DataError: a requirement cannot be read, or its schedule or length was not measured.
    """
    wanted = [_required(stored, text) for text in texts]
    changes = _changes(stored, wanted)
    no_verdict = stored.unfinished or worse_than_a_guess(stored)
    lines = []
    for each in wanted:
        change = changes[each.schedule, each.length]
        is_shown = change.high is not None and max(change.high, change.per_token) <= each.most
        if no_verdict or not is_shown:
            lines.append(f"not shown: {each.text}: {no_verdict or _shown_instead(change, each)}")
    return lines


def _changes(stored: Stored, wanted: Iterable[Requirement]) -> dict[Key, Average]:
    """Returns the change against the unchanged model at every required place."""
    rows = METRIC.rows(stored)
    places = {(row.schedule, row.length) for row in rows if (row.against, row.tokens) == (AS_IS, WHOLE)}
    required = {(each.schedule, each.length) for each in wanted}
    level = familywise(stored.groups * (len(rows) + len(required - places)))
    changes = {}
    for schedule, length in required:
        difference = stored.totals(schedule, length).minus(stored.totals(AS_IS, length))
        changes[schedule, length] = stored.average(*difference, level)
    return changes


def _shown_instead(change: Average, wanted: Requirement) -> str:
    """Describes the change that does not show a requirement."""
    few = too_few(change.documents)
    if not change.documents:
        return few
    said = f"it {effect(change, 'gains', 'costs', f'at {wanted.length:,} tokens', first=True)}"
    if change.high is not None and change.high <= wanted.most:
        said += f"; over all tokens the loss changes by {change.per_token:+.3g}"
    return f"{said}; {few}" if few else said
