"""The conclusions of a run in at most three sentences, each from a stored interval."""

from __future__ import annotations

from ..statistics.intervals import Estimate
from . import against_truncation, best, paired, perplexity
from .best import too_few, worse_than_a_guess
from .cells import SENTENCE, around, digits
from .far_repeats import distance_of
from .paired import short_length
from .stored import AS_IS, Stored

_MANY = 2
"""The most names in a sentence; more are only counted."""


def answer(stored: Stored) -> list[str]:
    """Returns the schedule with the lowest loss at the longest length, its cost, and the comparison with truncation.

    Every conclusion is the sign of an interval that holds for all comparisons of the run together.
    """
    if guessed := worse_than_a_guess(stored):
        return [guessed]
    longest = stored.lengths[-1]
    ppl = {row.schedule: row.ppl for row in perplexity.METRIC.rows(stored) if row.length == longest}
    found = next((row for row in best.METRIC.rows(stored) if row.length == longest), None)
    if found is None:
        documents = max(row.documents for row in perplexity.METRIC.rows(stored))
        few = f"; which is best is undecided: {too_few(documents)}" if len(ppl) > 1 and too_few(documents) else ""
        labels = sorted(ppl, key=ppl.__getitem__)
        shown = labels if len(labels) <= _MANY + 1 else dict.fromkeys([labels[0], stored.baseline])
        figures = ", ".join(f"{digits(ppl[label], 4)} under {stored.markdown_name(label)}" for label in shown)
        first = f"Perplexity at {longest:,} tokens: {figures}{few}."
        return [first, *_estimates(stored, ppl, documents)]
    others = {label: value for label, value in ppl.items() if label != found.schedule}
    other = stored.baseline if stored.baseline in others else min(others, key=others.__getitem__)
    beside = (
        f"{stored.markdown_name(other)}{', the unchanged model' if other == AS_IS else ''}: {digits(others[other], 4)}"
    )
    figures = f"{digits(ppl[found.schedule], 4)} ({beside}), {_stands(stored, found)}"
    best_one = f"{stored.markdown_name(found.schedule)}{', the unchanged model,' if found.schedule == AS_IS else ''}"
    first = f"{best_one} has the lowest perplexity at {longest:,} tokens: {figures}."
    return [first, *_cost(stored, found.schedule), *_truncation(stored, found.schedule)]


def _stands(stored: Stored, row: best.BestRow) -> str:
    """Names the schedules that the best one is significantly below."""
    labels = row.not_apart or row.apart
    names = " or ".join(map(stored.markdown_name, labels)) if len(labels) <= _MANY else f"{len(labels)} others"
    if not row.not_apart:
        return f"significantly below {'every other schedule' if len(labels) > 1 else names}"
    return f"not significantly below {names}"


def _estimates(stored: Stored, ppl: dict[str, float], documents: int) -> list[str]:
    """Compares the means of the best schedule and the baseline, for an undecided result."""
    changed = {label: value for label, value in ppl.items() if label != stored.baseline}
    if not changed:
        return []
    schedule, short = min(changed, key=changed.__getitem__), short_length(stored.lengths, stored.trained_length)
    parts = [
        f"{_worse(row.delta_nll, 'nats per token ')} {stored.markdown_name(stored.baseline)} at {short:,} tokens"
        for row in paired.METRIC.rows(stored)
        if (row.schedule, row.length) == (schedule, short)
    ]
    for row in against_truncation.METRIC.rows(stored):
        if (row.schedule, row.length) == (schedule, stored.lengths[-1]):
            truncation = f"truncation ({AS_IS} on the last {row.context:,} tokens only)"
            parts.append(f"{_worse(row.delta_nll, '' if parts else 'nats per token ')} {truncation} at {row.length:,}")
    where = "this document" if documents == 1 else f"these {documents} documents"
    return [f"On {where} alone, {stored.markdown_name(schedule)} is {' and '.join(parts)}."] if parts else []


def _worse(difference: float, unit: str) -> str:
    """Describes the difference of two losses, without an interval."""
    return f"{abs(difference):{SENTENCE}} {unit}{'worse' if difference > 0 else 'better'} than"


def _cost(stored: Stored, schedule: str) -> list[str]:
    """Describes a schedule's cost within the trained length, against the baseline."""
    short = short_length(stored.lengths, stored.trained_length)
    rows = [row for row in paired.METRIC.rows(stored) if (row.schedule, row.length) == (schedule, short)]
    if not rows:
        return []
    change, where = rows[0].change, f"at {short:,} tokens"
    if change.sign is None:
        return []
    against = stored.markdown_name(stored.baseline)
    if change.sign == 1:
        return [f"It costs {_by(change)} nats per token against {against} {where}."]
    if change.sign == -1:
        return [f"It gains {_by(-change)} nats per token against {against} {where}, too."]
    return [f"Its loss {where} does not differ significantly from that of {against}: by {_by(change)} nats per token."]


def _truncation(stored: Stored, schedule: str) -> list[str]:
    """Compares a schedule with truncation, on all tokens and on far repeats."""
    rows = [row for row in against_truncation.METRIC.rows(stored) if row.schedule == schedule]
    if not rows:
        beyond = stored.trained_length is not None and stored.lengths[-1] > stored.trained_length
        return ["Truncation was not measured."] if beyond else []
    row = max(rows, key=lambda row: row.length)
    change, far = row.change(against_truncation.ALL), row.change(against_truncation.FAR)
    if change is None or change.sign is None:
        return []
    truncation = f"truncation ({AS_IS} on the last {row.context:,} tokens only)"
    if change.sign:
        verb = "loses to" if change.sign > 0 else "beats"
        said = f"It {verb} {truncation} by {_by(change if change.sign > 0 else -change)} nats per token"
    else:
        said = f"Against {truncation} it is {_undecided(change, 'nats per token ')}"
    if far is not None and far.sign is not None:
        wins = f"it {'loses' if far.sign > 0 else 'wins'} by {_by(far if far.sign > 0 else -far)}"
        where = f"on far repeats ({distance_of(stored):,} or more tokens back)"
        said += f"; {where} {wins if far.sign else _undecided(far)}"
    return [f"{said}."]


def _undecided(change: Estimate, unit: str = "") -> str:
    """Describes the difference from truncation for an interval that includes zero."""
    by, where = (_by(-change), "lower") if change.mean < 0 else (_by(change), "higher")
    return f"undecided: {by} {unit}{where}"


def _by(change: Estimate) -> str:
    return f"{change.mean:{SENTENCE}}{around(change.mean, change.low, change.high, SENTENCE)}"
