"""The recommendation in words: one sentence, what it leaves open, and what truncation gives instead."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from ...output.formatting import listed
from ..metrics.cells import around, digits, exp
from ..metrics.guessing import said
from ..statistics import sampling
from ..statistics.intervals import Estimate
from .candidates import AS_IS
from .evidence import TRUNCATION, AnswerRow, Evidence
from .objective import Objective
from .racing.deciding import Decision
from .racing.halving import LEAST_DOCUMENTS
from .racing.measured import BEYOND, FAR, CandidateLosses, held_windows

LEAST_WINDOWS = 16
"""The fewest windows of a few documents of which half give an interval."""


def answer(evidence: Evidence) -> AnswerRow:
    """Returns the recommendation."""
    decision, goal = evidence.decision, evidence.objective
    settled = goal.target <= goal.short
    chosen = AS_IS if settled else decision.chosen
    guessed = worse_than_a_guess(evidence)
    decided = settled or not (decision.open or decision.too_short or guessed)
    named = not (decision.too_short or guessed) and chosen != AS_IS
    return AnswerRow(
        schedule=chosen,
        decided=decided,
        answer=_guessed(evidence, guessed) if guessed else _sentence(evidence, decision),
        command=evidence.serving.command(evidence.lineup.given(chosen), goal.target) if named else "",
        open=decision.open,
        equal=decision.equal,
        more=_more(evidence, decision),
        truncation="" if guessed else truncation(evidence, chosen),
        holds=held_length(evidence),
        memory=evidence.serving.said(goal.target),
        serve=evidence.serving.following(goal.target) if named else "",
        guessed=bool(guessed),
    )


def worse_than_a_guess(evidence: Evidence) -> str:
    """Returns a sentence where the model as it is predicts worse than a guess at the shortest length; else ""."""
    losses, length = evidence.losses, evidence.objective.lengths[0]
    return said(losses.mean(AS_IS, losses.measured(AS_IS), length), length, evidence.vocabulary)


def _guessed(evidence: Evidence, guessed: str) -> str:
    """Says that the model is worse than a guess, and besides only what no loss decides."""
    known = evidence.objective.target <= evidence.objective.short or evidence.decision.too_short
    return f"{guessed} {_sentence(evidence, evidence.decision)}" if known else guessed


def _sentence(evidence: Evidence, decision: Decision) -> str:
    goal = evidence.objective
    if goal.target <= goal.short:
        return not_needed(goal)
    if decision.too_short:
        return too_short(evidence.losses.windows, goal.target)
    if decision.open:
        return _open(evidence, decision)
    percent, name = f"{math.expm1(evidence.tolerance):.1%}", evidence.lineup.named(decision.chosen)
    if decision.chosen == AS_IS:
        return (
            f"Leave the model as it is: at {goal.target:,} tokens no schedule is better on this text by more than "
            f"{percent} of perplexity ({goal.said})."
        )
    return (
        f"Use {name}: {_compared(evidence, decision.chosen)}; no other schedule is better by more than "
        f"{percent} of perplexity ({goal.said})."
    )


def not_needed(goal: Objective) -> str:
    """Says that the target is within the trained length."""
    return f"Nothing is needed: the model was trained at {goal.trained:,} tokens, and {goal.target:,} is within that."


def too_short(windows: Sequence[int], target: int) -> str:
    """Says how much text there is, and how much it takes.

    Args:
        windows: per document, how many it has.
        target: the tokens of each.
    """
    amount, what = _amount(windows)
    return (
        f"This text is too short to decide: it has {amount} {what}{'s' * (amount != 1)} of {target:,} tokens. It "
        f"takes at least {LEAST_DOCUMENTS} documents of that length, or one of {LEAST_WINDOWS} times that length."
    )


def _open(evidence: Evidence, decision: Decision) -> str:
    what, more = _amount(evidence.losses.windows)[1], _more(evidence, decision)
    told = f"; about {more:,} more {what}s like these would tell" if more else ""
    percent, name = f"{math.expm1(evidence.tolerance):.1%}", evidence.lineup.named
    return (
        "This text does not decide. "
        f"The lowest so far is {name(decision.chosen)}: {_compared(evidence, decision.chosen)}. "
        f"Better by more than {percent} of perplexity may be {listed(map(name, decision.open))}{told}."
    )


def _more(evidence: Evidence, decision: Decision) -> int | None:
    """Returns how many more documents, or windows, settle what is open: as many again race as decide."""
    return None if decision.needed is None else max(1, 2 * decision.needed - _amount(evidence.losses.windows)[0])


def _compared(evidence: Evidence, chosen: str) -> str:
    """Says the perplexity at the target beside that of the model as it is and of yarn's default, and the cost."""
    goal, losses, held_out = evidence.objective, evidence.losses, evidence.held_out
    usual = evidence.lineup.usual
    others = [each for each in (AS_IS, usual) if each != chosen]
    named = {usual: f"under {evidence.lineup.named(usual)}", AS_IS: "as it is"}
    against = " and ".join(f"{_perplexity(losses.mean(each, held_out, goal.target))} {named[each]}" for each in others)
    cost = losses.difference(chosen, AS_IS, held_out, column=goal.short)
    return (
        f"perplexity {_perplexity(losses.mean(chosen, held_out, goal.target))} at {goal.target:,} tokens on held-out "
        f"text, against {against}; {_change(cost)} within the trained {goal.short:,}"
    )


def _perplexity(nll: float) -> str:
    return digits(exp(nll), 4)


def _change(difference: Estimate) -> str:
    """Writes a difference of losses as a change of perplexity in percent, with its interval."""
    text = f"{math.expm1(difference.mean):+.1%}"
    if difference.low is None or difference.high is None:
        return text
    return f"{text} ({math.expm1(difference.low):+.1%} to {math.expm1(difference.high):+.1%})"


def _amount(windows: Sequence[int]) -> tuple[int, str]:
    """Returns how much text there is, and what it is counted in: documents, or windows where these are few."""
    few = sampling.rests_on_windows(windows)
    return (sum(windows), "window") if few else (len(windows), "document")


def truncation(evidence: Evidence, chosen: str) -> str:
    """Says what reading only the last tokens gives instead; "" where it was not measured."""
    if not evidence.truncates or evidence.decision.too_short:
        return ""
    goal, losses, held_out = evidence.objective, evidence.losses, evidence.held_out
    change = losses.difference(chosen, TRUNCATION, held_out, evidence.level)
    subject = "the model as it is" if chosen == AS_IS else evidence.lineup.named(chosen)
    best = f"Giving the model only the last {goal.short:,} tokens, without any schedule,"
    if change.low is None or change.high is None:
        verdict = f"{best} compares with {subject} as {_nats(change, -1)}, without an interval"
    elif change.low > 0:
        verdict = f"{best} is better than {subject} on this text: by {_nats(change)} ({goal.said})"
    elif change.high < 0:
        verdict = f"{best} is worse than {subject} on this text: by {_nats(change, -1)} ({goal.said})"
    else:
        verdict = f"{best} is not told apart from {subject} on this text: {_nats(change, -1)} ({goal.said})"
    return f"{verdict}.{_of_far_repeats(evidence, chosen)}"


def _of_far_repeats(evidence: Evidence, chosen: str) -> str:
    losses, held_out = evidence.losses, evidence.held_out
    tokens = losses.tokens(held_out, FAR)
    if not tokens:
        return " None of its tokens repeats what is further back."
    schedule, truncated = (losses.mean(each, held_out, FAR) for each in (chosen, TRUNCATION))
    better = "wins" if schedule < truncated else "loses"
    share = tokens / losses.tokens(held_out, BEYOND)
    return (
        f" For the {tokens:,} tokens that repeat what is further back ({share:.1%} of those beyond), the schedule "
        f"{better}: {schedule:.3f} nats against {truncated:.3f}."
    )


def _nats(difference: Estimate, sign: int = 1) -> str:
    low, high = (difference.low, difference.high) if sign > 0 else map(_negative, (difference.high, difference.low))
    mean = sign * difference.mean
    return f"{mean:.3f}{around(mean, low, high, '.3f')} nats per token"


def _negative(bound: float | None) -> float | None:
    return None if bound is None else -bound


def held_length(evidence: Evidence) -> int:
    """Returns how far the model as it is holds on this text, in tokens.

    That is the largest length up to which the loss of no stretch of positions, from each measured length to the next,
    is shown to be above the loss of the last half of the trained length, in the same windows.
    """
    goal, losses = evidence.objective, evidence.losses
    within, reached = losses.measured(AS_IS), goal.short
    lengths = [length for length in goal.lengths if length >= goal.short]
    before = max((length for length in goal.lengths if length < goal.short), default=None)
    if before is None:
        return reached
    base = _stretch(losses, within, before, goal.short)
    for start, stop in pairwise(lengths):
        rise = _rise(losses, within, base, _stretch(losses, within, start, stop))
        if rise.mean != rise.mean or (rise.low if rise.low is not None else rise.mean) > 0:
            break
        reached = stop
    return reached


def _stretch(losses: CandidateLosses, within: Sequence[int], start: int, stop: int) -> list[float]:
    """Returns, per window, the mean loss of the model as it is over the positions between two lengths."""
    table, first, last = losses.sums[AS_IS], losses.columns.index(start), losses.columns.index(stop)
    sums = table[list(within), last] - table[list(within), first]
    counts = losses.counts[list(within), last] - losses.counts[list(within), first]
    return [float(one / count) if count else float("nan") for one, count in zip(sums, counts, strict=True)]


def _rise(losses: CandidateLosses, within: Sequence[int], base: Sequence[float], later: Sequence[float]) -> Estimate:
    pairs = [two - one for one, two in zip(base, later, strict=True)]
    known = [(window, rise) for window, rise in zip(within, pairs, strict=True) if rise == rise]
    if not known:
        return Estimate(float("nan"), None, None)
    held = held_windows(losses.windows, [window for window, _ in known])
    return sampling.estimate([rise for _, rise in known], [1.0] * len(known), held)
