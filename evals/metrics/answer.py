"""The conclusions of a run in at most three sentences, each based on a stored interval."""

import math

from ..facts import AS_IS, TRUNCATION
from . import perplexity
from .cells import digits, exp
from .far_repeats import distance_of
from .paired import short_length
from .stored import Stored
from .verdicts import FAR, METRIC, PAST, change_of, effect, too_few, worse_than_a_guess


def answer(stored: Stored, whole: bool = False) -> list[str]:
    """Returns the recommendation at the longest length, a schedule's gain and cost, and its comparison with truncation.

    Every conclusion is the sign of an interval in :mod:`.verdicts`. Differences from the baseline are over the same
    tokens as the perplexities. Differences from truncation are only over the tokens past the trained length, because
    truncation and the unchanged model are the same up to that length.

    Args:
        whole: whether to name all schedules that are not shown to be worse, instead of two.
    """
    if guessed := worse_than_a_guess(stored):
        return [guessed]
    rows = [row for row in perplexity.METRIC.rows(stored) if row.length == stored.lengths[-1]]
    ppl = {row.schedule: row.ppl for row in rows if row.schedule in stored.ranked}
    few = too_few(max(row.documents for row in rows))
    sentences = [
        _recommended(stored, ppl, few, whole),
        _gain_and_cost(stored, ppl, few),
        _past_truncation(stored, ppl, few),
    ]
    return [f"{sentence}." for sentence in sentences if sentence]


def _recommended(stored: Stored, ppl: dict[str, float], few: str, whole: bool) -> str:
    """Recommends the schedule with the lowest perplexity; if this is undecided, names its nearest rival.

    The sentence also contains the perplexities of the baseline, of the best changed schedule, and of truncation.
    """
    longest = stored.lengths[-1]
    of_schedules = min(ppl, key=ppl.__getitem__)
    ppl = dict(ppl)
    if longest in stored.truncated_losses:
        ppl[TRUNCATION] = exp(stored.truncated_losses[longest])
    first, *others = sorted(ppl, key=ppl.__getitem__)
    not_apart = _not_apart(stored, of_schedules)
    past = {}
    for row in METRIC.rows(stored):
        if row.tokens == PAST and row.schedule in ppl:
            past[row.schedule] = row.change.sign
    if first == TRUNCATION:
        rivals = [label for label, sign in past.items() if sign != 1]
    else:
        rivals = not_apart + [TRUNCATION] * (past.get(first, -1) != -1)
    names = {label: stored.markdown_name(label) for label in ppl}
    last = f"{stored.truncation.length:,}" if stored.truncation else ""
    as_is = stored.model.get("as_is", "the model as it is")
    glosses = {AS_IS: f" ({as_is})", TRUNCATION: f" ({as_is}, on the last {last} tokens)"}
    name = f"{names[first]}{glosses.get(first, '')}"
    if first != TRUNCATION:
        names |= {AS_IS: f"{AS_IS}, {as_is}", TRUNCATION: f"{TRUNCATION} to the last {last}"}
    remarks = {}
    if first == TRUNCATION and len(stored.ranked) > 1:
        apart = "below every schedule" if of_schedules == AS_IS else "the best schedule"
        remark = _undecided(stored, "it", not_apart, ppl, whole) or apart
        if few or rivals:
            remark = "the lowest of the schedules"
        remarks = {of_schedules: f", {remark}"}
    shown = [label for label in others if label in (stored.baseline, _changed(stored, ppl), TRUNCATION)]
    parts = [f"{names[label]}: {digits(ppl[label], 4)}{remarks.get(label, '')}" for label in shown]
    figures = digits(ppl[first], 4) + (f" ({'; '.join(parts)})" if parts else "")
    if not others:
        return f"At {longest:,} tokens, {name} has a perplexity of {figures}"
    if few or rivals:
        why = f"but {few}" if few else _undecided(stored, stored.markdown_name(first), rivals, ppl, whole)
        return f"At {longest:,} tokens, {name} has the lowest perplexity: {figures}, {why}"
    return f"At {longest:,} tokens, use {name}: lowest perplexity, {figures}"


def _undecided(stored: Stored, lowest: str, rivals: list[str], ppl: dict[str, float], whole: bool) -> str:
    """Names the nearest rival of the lowest perplexity, and the others or their number; "" if there is none.

    Args:
        lowest: the name of what has the lowest perplexity.
        rivals: the labels that are not significantly worse.
    """
    if not rivals:
        return ""
    nearest = sorted(rivals, key=lambda label: ppl.get(label, math.inf))
    names = [lowest, *map(stored.markdown_name, nearest)]
    if len(rivals) > 1 and not whole:
        names[2:] = [f"{len(rivals) - 1} more"]
    return f"undecided between {', '.join(names[:-1])} and {names[-1]}"


def _changed(stored: Stored, ppl: dict[str, float]) -> str | None:
    """Returns the schedule with the lowest perplexity except the baseline; None if there is no such schedule."""
    return min((label for label in stored.ranked if label != stored.baseline), key=ppl.__getitem__, default=None)


def _not_apart(stored: Stored, schedule: str) -> list[str]:
    """Returns the other schedules whose loss at the longest length is not shown to be above that of ``schedule``."""
    labels = []
    for label in stored.ranked:
        change = change_of(stored, label, schedule, stored.lengths[-1])
        if label != schedule and not (change and change.sign == 1):
            labels.append(label)
    return labels


def _gain_and_cost(stored: Stored, ppl: dict[str, float], few: str) -> str:
    """Compares the best changed schedule with the baseline at the longest length and within the trained length."""
    schedule = _changed(stored, ppl)
    baseline = stored.baseline
    if schedule is None:
        return ""
    parts = []
    for length in dict.fromkeys([stored.lengths[-1], short_length(stored.lengths, stored.trained_length)]):
        change = change_of(stored, schedule, baseline, length)
        if change:
            parts.append(effect(change, "gains", "costs", f"at {length:,} tokens", first=not parts))
    return _compared(stored, few, stored.markdown_name(baseline), schedule, parts)


def _past_truncation(stored: Stored, ppl: dict[str, float], few: str) -> str:
    """Compares the best schedule with truncation, on the tokens past the trained length and on far repeats.

    Recommends the schedule for far repeats if it is better only on them.
    """
    schedule = min(ppl, key=ppl.__getitem__)
    longest = stored.lengths[-1]
    past = change_of(stored, schedule, TRUNCATION, longest, PAST)
    far = change_of(stored, schedule, TRUNCATION, longest, FAR)
    if past is None or stored.truncation is None:
        beyond = stored.trained_length is not None and longest > stored.trained_length
        return "Truncation was not measured" if beyond and not stored.truncation else ""
    trained = f"{stored.truncation.length:,}"
    first = _changed(stored, ppl) is None
    parts = [effect(past, "wins", "loses", f"at positions past {trained}", first=first)]
    if far and far.sign is not None:
        where = f"on far repeats (of text {distance_of(stored):,}+ tokens back)"
        use = ": use it if those matter" if far.sign == -1 != past.sign else ""
        parts.append(effect(far, "wins", "loses", where) + use)
    explained = "" if stored.truncated_losses else f" to {trained}"
    return _compared(stored, few, f"{TRUNCATION}{explained}", schedule, parts)


def _compared(stored: Stored, few: str, against: str, schedule: str, effects: list[str]) -> str:
    """Formats the effects of a schedule, limited to these documents if there are too few of them for a verdict."""
    if not effects:
        return ""
    number = stored.data["documents"]
    start = f"On {'this document' if number == 1 else f'these {number} documents'} alone, against" if few else "Against"
    return f"{start} {against}, {stored.markdown_name(schedule)} {'; it '.join(effects)}"
