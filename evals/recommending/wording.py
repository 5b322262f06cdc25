"""The text of the recommendation: the schedule, its perplexity and cost, and the alternative of truncation.

All figures are perplexities and their relative changes; the rows contain the losses in nats.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..metrics.best import guessing, too_few
from ..metrics.cells import digits, exp, percent
from ..metrics.stored import AS_IS, TRUNCATION
from ..statistics import intervals
from ..statistics.intervals import CONCLUSIVE, Estimate
from .evidence import AnswerRow, Evidence
from .losses import estimate
from .options import Objective


def answer(evidence: Evidence) -> AnswerRow:
    """Returns the recommendation."""
    decision, goal = evidence.decision, evidence.objective
    settled, few = not goal.is_beyond, too_few(evidence.held_out.texts)
    chosen = AS_IS if settled else decision.chosen
    guessed, text = worse_than_a_guess(evidence), _sentences(evidence, few)
    if guessed:  # statements that do not depend on losses
        text = f"{guessed} {text}" if settled or decision.too_short else guessed
    named = not (decision.too_short or guessed) and chosen != AS_IS
    return AnswerRow(
        schedule=chosen,
        decided=settled or not (decision.open or decision.too_short or guessed or few),
        answer=text,
        command=evidence.deployment.command(evidence.candidates.given(chosen), goal.target) if named else "",
        open=decision.open,
        equal=decision.equal,
        note=_note(evidence, chosen) if named else "",
        serve=evidence.deployment.following(goal.target) if named else "",
        guessed=bool(guessed),
    )


def worse_than_a_guess(evidence: Evidence) -> str:
    """Returns a warning if the unchanged model is worse than a uniform guess at the shortest length; else ""."""
    losses, length = evidence.losses, evidence.objective.lengths[0]
    known = (AS_IS, length) in losses.read_from
    return guessing(estimate(losses, {length: 1}, AS_IS).mean, length, evidence.vocabulary) if known else ""


def not_needed(goal: Objective) -> str:
    """Returns a sentence saying that the target is within the trained length."""
    return f"Nothing is needed: the model was trained at {goal.trained:,} tokens, and {goal.target:,} is within that."


def too_short(windows: Sequence[int], target: int, all_decide: bool = False) -> str:
    """Returns sentences on the amount of text, and on the amount that a decision needs.

    Args:
        windows: the number of windows of each document.
        target: the number of tokens of a window.
        all_decide: whether the decision uses all of the text, because there is no race.
    """
    few = intervals.rests_on_windows(windows)
    amount, what = (sum(windows), "window") if few else (len(windows), "document")
    return (
        f"This text is too short to decide: it has {amount} {what}{'s' * (amount != 1)} of {target:,} tokens. A "
        f"decision needs {CONCLUSIVE if all_decide else 2 * CONCLUSIVE} documents of that length."
    )


def _sentences(evidence: Evidence, few: str) -> str:
    """Names the recommended schedule, and compares it with all other schedules and with truncation."""
    goal, decision, name = evidence.objective, evidence.decision, evidence.candidates.named
    if not goal.is_beyond:
        return not_needed(goal)
    if decision.too_short:
        return too_short(evidence.losses.windows, goal.target, evidence.candidates.served)
    chosen, share = name(decision.chosen), f"{math.expm1(evidence.tolerance):.1%} of perplexity"
    if few:
        others = "" if evidence.candidates.served else " to test on"
        said = f"Undecided, because {few}{others}: of the schedules, {chosen} has the lowest loss."
    elif decision.open:
        first, *more = decision.open
        others = f"{name(first)}{f' or {len(more)} more' if more else ''}"
        said = f"Undecided: of the schedules, {chosen} has the lowest loss, but {others} may be better by more than "
        said += f"{share}."
    elif decision.chosen == AS_IS:
        said = f"Leave the model unchanged ({AS_IS}): no schedule is better by more than {share}."
    else:
        said = f"Of the schedules, use {chosen}: no other is better by more than {share}."
    return " ".join(filter(None, [said, _perplexities(evidence), against_truncation(evidence, few)]))


def _perplexities(evidence: Evidence) -> str:
    """Returns a sentence on the chosen schedule's perplexity at the target, next to those of the usual choices.

    The sentence also has the cost within the trained length.
    """
    goal, candidates, chosen = evidence.objective, evidence.candidates, evidence.decision.chosen
    held_out = evidence.held_out
    usual = [spec for spec in dict.fromkeys([AS_IS, candidates.usual]) if spec != chosen]
    own, *others = (digits(exp(estimate(held_out, {goal.target: 1}, each).mean), 4) for each in (chosen, *usual))
    against = ", ".join(f"{candidates.named(spec)} {ppl}" for spec, ppl in zip(usual, others, strict=True))
    said = f"At {goal.target:,} tokens its perplexity is {own}{f' ({against})' if against else ''}"
    if chosen == AS_IS:
        return f"{said}."
    cost = percent(estimate(held_out, {goal.short: 1}, chosen, AS_IS))
    return f"{said}; at {goal.short:,}, {cost} against {AS_IS}."


def against_truncation(evidence: Evidence, few: str) -> str:
    """Compares truncation with the chosen schedule, by the interval; "" if truncation was not measured."""
    if not evidence.truncates:
        return ""
    chosen, held_out = evidence.decision.chosen, evidence.held_out
    change = estimate(held_out, evidence.objective.weights, TRUNCATION, chosen, evidence.level)
    said, mean = f"truncating the input to its last {evidence.objective.short:,} tokens", percent(change)
    if few or change.sign is None:
        return f"Whether {said} is better is undecided: {percent(Estimate(change.mean, None, None))}."
    if change.sign > 0:
        return f"T{said[1:]} is worse: {mean}."
    said = f"T{said[1:]} is better: {mean}" if change.sign else f"Whether {said} is better is undecided: {mean}"
    repeats = evidence.far_repeats(chosen).minus(evidence.far_repeats(TRUNCATION))
    far = held_out.estimate(*repeats, evidence.level) if any(repeats.counts) else None
    other = "the full input" if chosen == AS_IS else "the schedule"
    if far and far.sign == -1:
        return f"{said}; choose {other} if text repeats what is further back ({percent(far)} there)."
    return f"{said}; choose {other} if the task needs text further back."


def _note(evidence: Evidence, chosen: str) -> str:
    """Explains how a schedule whose tables depend on the length differs in use from its measurement; else "".

    Also names a fixed schedule with the measured tables, if there is one.
    """
    found = evidence.candidates.following(chosen)
    if not found:
        return ""
    (candidate, fixed), target = found, evidence.objective.target
    same = f"; {fixed} is that table at any length" if fixed else ""
    return (
        f"The table of {evidence.candidates.named(chosen)} depends on the length: the measurement used the table at "
        f"{target:,}, the folder keeps max_position_embeddings {candidate.reach}, and cached decoding and most "
        f"engines differ{same}."
    )
