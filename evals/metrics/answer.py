"""The conclusions of a run in at most three sentences, each based on a stored interval."""

from __future__ import annotations

import math

from ..statistics.intervals import Estimate
from . import against_truncation, best, paired, perplexity
from .against_truncation import FAR, TRUNCATION, truncated
from .best import too_few, worse_than_a_guess
from .cells import SENTENCE, around, digits, exp, negligible
from .far_repeats import distance_of
from .paired import short_length
from .stored import AS_IS, Stored

_UNIT = " nats"
_EXPLAINED = " nats (of log perplexity)"
"""The unit where it is first used, with an explanation."""


def answer(stored: Stored) -> list[str]:
    """Returns the recommendation at the longest length, a schedule's gain and cost, and its comparison with truncation.

    Every conclusion is the sign of an interval that holds for all comparisons of the run together. Differences from the
    baseline are over the same tokens as the perplexities. Differences from truncation are only over the tokens past the
    trained length, because truncation and the unchanged model are the same up to that length.
    """
    if guessed := worse_than_a_guess(stored):
        return [guessed]
    rows = [row for row in perplexity.METRIC.rows(stored) if row.length == stored.lengths[-1]]
    ppl = {row.schedule: row.ppl for row in rows}
    few = too_few(max(row.documents for row in rows))
    sentences = [_recommended(stored, ppl, few), _gain_and_cost(stored, ppl, few), _past_truncation(stored, ppl, few)]
    return "\n".join(f"{sentence}." for sentence in sentences if sentence).replace(_UNIT, _EXPLAINED, 1).split("\n")


def _recommended(stored: Stored, ppl: dict[str, float], few: str) -> str:
    """Recommends the schedule with the lowest perplexity; if this is undecided, names its nearest rival.

    The sentence also contains the perplexities of the baseline, of the best changed schedule, and of truncation.
    """
    longest = stored.lengths[-1]
    of_schedules, ppl = min(ppl, key=ppl.__getitem__), ppl | _truncated(stored)
    first, *others = sorted(ppl, key=ppl.__getitem__)
    not_apart = next((row.not_apart for row in best.METRIC.rows(stored) if row.length == longest), [])
    compared = [row for row in against_truncation.METRIC.rows(stored) if row.length == longest]
    past = {row.schedule: change.sign for row in compared if (change := row.change())}
    if first == TRUNCATION:
        rivals = [label for label, sign in past.items() if sign != 1]
    else:
        rivals = not_apart + [TRUNCATION] * (past.get(first, -1) != -1)
    names = {label: stored.markdown_name(label) for label in ppl}
    last = f"{stored.truncation.length:,}" if stored.truncation else ""
    as_is = stored.model.get("as_is", "the model as it is")
    glosses = {AS_IS: f" ({as_is})", TRUNCATION: f" ({as_is}, on the last {last})"}
    name = f"{names[first]}{glosses.get(first, '')}"
    if first != TRUNCATION:
        names |= {AS_IS: f"{AS_IS}, {as_is}", TRUNCATION: f"{TRUNCATION} to the last {last}"}
    remarks = {}
    if first == TRUNCATION and len(stored.schedules) > 1 and not (few or rivals):
        apart = "below every schedule" if of_schedules == AS_IS else "the best schedule"
        remarks = {of_schedules: f", {_undecided(stored, not_apart, ppl) or apart}"}
    shown = [label for label in others if label in (stored.baseline, _changed(stored, ppl), TRUNCATION)]
    parts = [f"{names[label]}: {digits(ppl[label], 4)}{remarks.get(label, '')}" for label in shown]
    figures = digits(ppl[first], 4) + (f" ({'; '.join(parts)})" if parts else "")
    if not others:
        return f"At {longest:,} tokens, {name} has a perplexity of {figures}"
    if few or rivals:
        why = f"but {few}" if few else _undecided(stored, rivals, ppl)
        return f"At {longest:,} tokens, {name} has the lowest perplexity: {figures}, {why}"
    return f"At {longest:,} tokens, use {name}: lowest perplexity, {figures}"


def _undecided(stored: Stored, rivals: list[str], ppl: dict[str, float]) -> str:
    """Names the nearest rival of the lowest perplexity, and the number of further rivals; "" if there is none.

    Args:
        rivals: the labels that are not significantly worse.
    """
    if not rivals:
        return ""
    nearest = stored.markdown_name(min(rivals, key=lambda label: ppl.get(label, math.inf)))
    both = f"it and {nearest}" if len(rivals) == 1 else f"it, {nearest} and {len(rivals) - 1} more"
    return f"undecided between {both}"


def _truncated(stored: Stored) -> dict[str, float]:
    """Returns a dict with truncation's perplexity at the longest length, by its label; empty if it is unknown."""
    loss = truncated(stored).get((TRUNCATION, stored.lengths[-1]))
    return {TRUNCATION: exp(loss.mean)} if loss else {}


def _changed(stored: Stored, ppl: dict[str, float]) -> str | None:
    """Returns the schedule with the lowest perplexity except the baseline; None if there is no such schedule."""
    return min((label for label in stored.schedules if label != stored.baseline), key=ppl.__getitem__, default=None)


def _gain_and_cost(stored: Stored, ppl: dict[str, float], few: str) -> str:
    """Compares the best changed schedule with the baseline at the longest length and within the trained length."""
    schedule = _changed(stored, ppl)
    changes = {row.length: row.change for row in paired.METRIC.rows(stored) if row.schedule == schedule}
    short = short_length(stored.lengths, stored.trained_length)
    lengths = [n for n in dict.fromkeys([stored.lengths[-1], short]) if n in changes]
    parts = [_effect(changes[n], "costs", "gains", f"at {n:,} tokens", few) for n in lengths]
    return _compared(stored, few, stored.markdown_name(stored.baseline), str(schedule), *parts)


def _past_truncation(stored: Stored, ppl: dict[str, float], few: str) -> str:
    """Compares the best schedule with truncation, on the tokens past the trained length and on far repeats.

    Recommends the schedule for far repeats if it is better only on them.
    """
    schedule = min(ppl, key=ppl.__getitem__)
    rows = [row for row in against_truncation.METRIC.rows(stored) if row.schedule == schedule]
    if not rows:
        beyond = stored.trained_length is not None and stored.lengths[-1] > stored.trained_length
        return "Truncation was not measured" if beyond else ""
    row = max(rows, key=lambda row: row.length)
    change, far = row.change(), row.change(FAR)
    whole = _effect(change, "loses", "wins", f"at positions past {row.context:,}", few)
    repeats = _effect(far, "loses", "wins", f"on far repeats (of text {distance_of(stored):,}+ tokens back)")
    if not whole or few or far is None:
        repeats = ""
    elif change and far.sign == -1 != change.sign and not negligible(far):
        repeats = f", but {repeats}: use it if those matter"
    explained = "" if _truncated(stored) else f" to {row.context:,}"
    return _compared(stored, few, f"{TRUNCATION}{explained}", schedule, whole, repeats)


def _compared(stored: Stored, few: str, baseline: str, schedule: str, *effects: str) -> str:
    """Formats the effects of a schedule against a baseline, limited to these documents if there are too few of them.

    Args:
        few: the reason why there are too few documents for a verdict; "" if there are enough.
        effects: the texts from :func:`_effect`.
    """
    first, *others = [*filter(None, effects)] or [""]
    if not first:
        return ""
    number, verb = stored.data["documents"], f"{first.split()[0]} "
    for other in others:
        first += other if other.startswith(",") else f" and {other.removeprefix(verb)}"
    start = f"On {'this document' if number == 1 else f'these {number} documents'} alone, against" if few else "Against"
    return f"{start} {baseline}, {stored.markdown_name(schedule)} {first}"


def _effect(change: Estimate | None, worse: str, better: str, where: str, few: str = "") -> str:
    """Formats a significant difference, with its interval if there are enough documents.

    Returns "" if ``change`` is None, or if it has no interval although there are enough documents.
    """
    if change is None or (change.sign is None and not few):
        return ""
    if negligible(change):
        return f"has no measurable effect {where}"
    if change.sign == 0 and not few:
        return f"has no significant effect {where}"
    size = -change if change.mean < 0 else change
    interval = "" if few else around(size.mean, size.low, size.high, SENTENCE)
    return f"{better if change.mean < 0 else worse} {size.mean:{SENTENCE}}{interval}{_UNIT} {where}"
