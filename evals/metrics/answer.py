"""The conclusions of a run in at most three sentences, each from a stored interval."""

from __future__ import annotations

from ..statistics.intervals import Estimate
from . import against_truncation, best, paired, perplexity
from .against_truncation import TRUNCATION, truncated
from .best import too_few, worse_than_a_guess
from .cells import SENTENCE, around, digits, exp
from .far_repeats import distance_of
from .paired import short_length
from .stored import AS_IS, Stored


def answer(stored: Stored) -> list[str]:
    """Returns the lowest perplexity, a schedule's gain and cost, and its comparison with truncation.

    Every conclusion is the sign of an interval that holds for all comparisons of the run together. The differences from
    the baseline are over the tokens of the perplexities. Those from truncation are over the tokens past the trained
    length only, because up to there truncation is the unchanged model.
    """
    if guessed := worse_than_a_guess(stored):
        return [guessed]
    longest = stored.lengths[-1]
    rows = [row for row in perplexity.METRIC.rows(stored) if row.length == longest]
    ppl = {row.schedule: row.ppl for row in rows}
    few = too_few(max(row.documents for row in rows))
    lowest = min(ppl, key=ppl.__getitem__)
    changed = min((label for label in ppl if label != stored.baseline), key=ppl.__getitem__, default=None)
    if cut := truncated(stored).get((TRUNCATION, longest)):
        ppl[TRUNCATION] = exp(cut.mean)
    first, of_schedules = _lowest(stored, ppl, changed), ""
    compared = next((row for row in best.METRIC.rows(stored) if row.length == longest), None)
    if compared is not None:
        lowest, of_schedules = compared.schedule, _below(stored, compared.not_apart, "every other schedule")
    if few:
        first += f", undecided: {few}" if len(ppl) > 1 else ""
    elif min(ppl, key=ppl.__getitem__) == TRUNCATION:
        past = [row for row in against_truncation.METRIC.rows(stored) if row.length == longest]
        names = [row.schedule for row in past if (change := row.change()) and change.sign != 1]
        first += f", {_below(stored, names, 'every schedule')} past {past[0].context:,} tokens"
    elif of_schedules:
        first, of_schedules = f"{first}, {of_schedules}", ""
    second = _gain_and_cost(stored, changed, of_schedules if changed == lowest else "", few) if changed else ""
    third = _past_trained_length(stored, lowest, few, explained=TRUNCATION in ppl)
    return [f"{sentence}." for sentence in (first, second, third) if sentence]


def _lowest(stored: Stored, ppl: dict[str, float], changed: str | None) -> str:
    """Names the lowest perplexity, beside those of the baseline, the best changed schedule and truncation."""
    first, *others = sorted(ppl, key=ppl.__getitem__)
    cut = f"{AS_IS} on the last {stored.truncation.length:,} tokens" if stored.truncation else ""
    names = {label: stored.markdown_name(label) for label in ppl}
    shown = [label for label in others if label in (stored.baseline, changed, TRUNCATION)]
    figures = [f"{names[each]}{f', {cut}' if each == TRUNCATION else ''}: {digits(ppl[each], 4)}" for each in shown]
    beside = f" ({'; '.join(figures)})" if shown else ""
    name = f"{names[first]}{f' ({cut})' if first == TRUNCATION else ''}"
    verb = "has the lowest perplexity:" if others else "has a perplexity of"
    return f"At {stored.lengths[-1]:,} tokens, {name} {verb} {digits(ppl[first], 4)}{beside}"


def _below(stored: Stored, undecided: list[str], every: str) -> str:
    """Names the schedules that the lowest loss is not significantly below; without any, it is below ``every``."""
    if not undecided:
        return f"significantly below {every}"
    one = len(undecided) == 1
    return (
        f"not significantly below {stored.markdown_name(undecided[0]) if one else f'{len(undecided)} of the schedules'}"
    )


def _gain_and_cost(stored: Stored, schedule: str, of_schedules: str, few: str) -> str:
    """Compares a schedule with the baseline at the longest length and within the trained length."""
    changes = {row.length: row.change for row in paired.METRIC.rows(stored) if row.schedule == schedule}
    short = short_length(stored.lengths, stored.trained_length)
    lengths = [n for n in dict.fromkeys([stored.lengths[-1], short]) if n in changes]
    parts: list[str] = []
    for n in lengths:
        change, unit, where = changes[n], "" if parts else " nats per token", f"at {n:,}{'' if parts else ' tokens'}"
        if change.mean == change.low == change.high == 0:
            parts.append(f"costs nothing {where}")
        elif few or change.sign is not None:
            verb = "gains" if change.mean < 0 else "costs"
            parts.append(f"{verb} {_by(change, few, unit)} {where}{_undecided(change, few)}")
    if not parts:
        return ""
    start = f"On {_documents(stored)} alone, " if few else ""
    name = f"{stored.markdown_name(schedule)}{f', {of_schedules},' if of_schedules else ''}"
    baseline = f"{stored.markdown_name(stored.baseline)}{', the unchanged model' if stored.baseline == AS_IS else ''}"
    return f"{start}{name} {' and '.join(parts)}, against {baseline}"


def _past_trained_length(stored: Stored, schedule: str, few: str, explained: bool) -> str:
    """Compares a schedule with truncation, on the tokens past the trained length and on far repeats."""
    rows = [row for row in against_truncation.METRIC.rows(stored) if row.schedule == schedule]
    if not rows:
        beyond = stored.trained_length is not None and stored.lengths[-1] > stored.trained_length
        return "Truncation was not measured" if beyond else ""
    row = max(rows, key=lambda row: row.length)
    change, far = row.change(against_truncation.ALL), row.change(against_truncation.FAR)
    if change is None or (change.sign is None and not few):
        return ""
    verb = "loses to" if change.mean > 0 else "beats"
    truncation = "truncation" if explained else f"truncation ({AS_IS} on the last {row.context:,})"
    by = f"{_by(change, few, ' nats')}{_undecided(change, few)}"
    said = f"On the tokens past {row.context:,}, {stored.markdown_name(schedule)} {verb} {truncation} by {by}"
    if far is not None and far.sign is not None and not few:
        verb, distance = "loses" if far.mean > 0 else "wins", distance_of(stored)
        said += f"; on far repeats ({distance:,}+ tokens back) it {verb} by {_by(far)}{_undecided(far)}"
    return said


def _documents(stored: Stored) -> str:
    number = stored.data["documents"]
    return "this document" if number == 1 else f"these {number} documents"


def _undecided(change: Estimate, few: str = "") -> str:
    """Marks an interval that contains zero, except with too few documents, which the first sentence states."""
    return " (undecided)" if change.sign == 0 and not few else ""


def _by(change: Estimate, few: str = "", unit: str = "") -> str:
    """Writes the size of a difference, with its interval unless there are too few documents."""
    size = -change if change.mean < 0 else change
    return f"{size.mean:{SENTENCE}}{'' if few else around(size.mean, size.low, size.high, SENTENCE)}{unit}"
