"""The text of the recommendation: the schedule, the comparison with truncation, and open questions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...output.formatting import listed
from ..metrics.best import guessing, too_few
from ..metrics.cells import SENTENCE, change_cell, digits, exp, signed
from ..metrics.stored import AS_IS
from ..statistics import intervals
from ..statistics.intervals import CONCLUSIVE
from .candidates import Candidate
from .evidence import TRUNCATION, AnswerRow, Evidence
from .losses import BEYOND, FAR
from .options import Objective
from .race import Decision


def answer(evidence: Evidence) -> AnswerRow:
    """Returns the recommendation."""
    decision, goal = evidence.decision, evidence.objective
    settled = not goal.is_beyond
    chosen = AS_IS if settled else decision.chosen
    guessed, text = worse_than_a_guess(evidence), _sentence(evidence, decision)
    if guessed:  # statements that do not depend on losses
        text = f"{guessed} {text}" if settled or decision.too_short else guessed
    decided = settled or not (decision.open or decision.too_short or guessed or too_few(evidence.documents))
    named = not (decision.too_short or guessed) and chosen != AS_IS
    return AnswerRow(
        schedule=chosen,
        decided=decided,
        answer=text,
        command=evidence.deployment.command(evidence.candidates.given(chosen), goal.target) if named else "",
        open=decision.open,
        equal=decision.equal,
        truncation="" if guessed else of_far_repeats(evidence, chosen),
        serve=evidence.deployment.following(goal.target) if named else "",
        guessed=bool(guessed),
    )


def worse_than_a_guess(evidence: Evidence) -> str:
    """Returns a sentence if the unchanged model predicts worse than a guess at the shortest length; else ""."""
    losses, length = evidence.losses, evidence.objective.lengths[0]
    return guessing(losses.mean(AS_IS, losses.measured(AS_IS), length), length, evidence.vocabulary)


def _sentence(evidence: Evidence, decision: Decision) -> str:
    goal = evidence.objective
    if not goal.is_beyond:
        return not_needed(goal)
    if decision.too_short:
        return too_short(evidence.losses.windows, goal.target, evidence.candidates.served)
    name, percent = evidence.candidates.named, f"{math.expm1(evidence.tolerance):.1%} of perplexity"
    beside, more = beside_truncation(evidence, decision.chosen), _compared(evidence, decision.chosen)
    lowest, few = f"The lowest loss so far is that of {name(decision.chosen)}{beside}.", too_few(evidence.documents)
    if few:
        return " ".join([f"This text does not decide: {few} held out.", lowest, *more])
    if decision.open:
        others = f"Schedules that may be better by more than {percent}: {listed(map(name, decision.open))}."
        return " ".join(["This text does not decide.", lowest, *more, others])
    use = "Leave the model unchanged" if decision.chosen == AS_IS else f"Use {name(decision.chosen)}"
    return " ".join(
        [f"{use}{beside}.", *more, f"No other schedule is better by more than {percent} ({goal.description})."]
    )


def not_needed(goal: Objective) -> str:
    """States that the target is within the trained length."""
    return f"Nothing is needed: the model was trained at {goal.trained:,} tokens, and {goal.target:,} is within that."


def too_short(windows: Sequence[int], target: int, all_decide: bool = False) -> str:
    """States the amount of text, and the required amount.

    Args:
        windows: the number of windows of each document.
        target: the tokens of a window.
        all_decide: whether all of the text decides, without a race.
    """
    few = intervals.rests_on_windows(windows)
    amount, what = (sum(windows), "window") if few else (len(windows), "document")
    return (
        f"This text is too short to decide: it has {amount} {what}{'s' * (amount != 1)} of {target:,} tokens. A "
        f"decision needs {CONCLUSIVE if all_decide else 2 * CONCLUSIVE} documents of that length."
    )


def follows(candidate: Candidate, fixed: str | None, target: int) -> str:
    """Describes how a schedule whose tables depend on the length differs from its measurement; names a fixed one."""
    same = f"; {fixed} is that table at any length" if fixed else ""
    return (
        f"Its table depends on the length: the measurement used the table at {target:,}, the folder keeps "
        f"max_position_embeddings {candidate.reach}, and cached decoding and most engines differ{same}."
    )


def _compared(evidence: Evidence, chosen: str) -> list[str]:
    """Compares the perplexity at the target with that of the unchanged model and of YaRN's default, and states the cost
    within the trained length; adds a note on a schedule whose tables follow the length."""
    goal, losses, held_out, candidates = evidence.objective, evidence.losses, evidence.held_out, evidence.candidates

    def perplexity(spec: str) -> str:
        return digits(exp(losses.mean(spec, held_out, goal.target)), 4)

    names = {AS_IS: AS_IS}
    names.setdefault(candidates.usual, f"the usual {candidates.named(candidates.usual)}")
    against = ", ".join(f"{name}: {perplexity(spec)}" for spec, name in names.items() if spec != chosen)
    said = f"Perplexity at {goal.target:,} tokens is {perplexity(chosen)} on held-out text ({against})"
    if chosen != AS_IS:
        cost = losses.difference(chosen, AS_IS, held_out, column=goal.short)
        mean, low, high = (
            "" if each is None else f"{math.expm1(each):+.1%}" for each in (cost.mean, cost.low, cost.high)
        )
        said += f"; at {goal.short:,} it changes by {mean}{f' ({low} to {high})' if low else ''} against {AS_IS}"
    found = candidates.following(chosen)
    return [f"{said}.", *([follows(*found, goal.target)] if found else [])]


def beside_truncation(evidence: Evidence, chosen: str) -> str:
    """Compares the chosen schedule with truncation, by the interval; "" if it was not measured."""
    if not evidence.truncates:
        return ""
    change = evidence.losses.difference(chosen, TRUNCATION, evidence.held_out, evidence.level)
    last = f"truncation (the unchanged model, only the last {evidence.objective.short:,} tokens)"
    if change.sign is None or too_few(evidence.documents):
        return f" ({signed(change.mean, SENTENCE)} nats per token against {last})"
    by = change_cell(-change if change.mean < 0 else change, SENTENCE).lstrip("+")
    if change.sign:
        return f", {'but it loses to' if change.sign > 0 else 'which beats'} {last} by {by} nats per token"
    where = "lower" if change.mean < 0 else "higher"
    return f", but its loss is not significantly {where} than that of {last}: by {by} nats per token"


def of_far_repeats(evidence: Evidence, chosen: str) -> str:
    """Compares the chosen schedule with truncation on far repeats."""
    losses, held_out = evidence.losses, evidence.held_out
    tokens = losses.tokens(held_out, FAR)
    if not evidence.truncates or evidence.decision.too_short or not tokens:
        return ""
    change, share = (
        losses.difference(chosen, TRUNCATION, held_out, evidence.level, FAR),
        losses.tokens(held_out, BEYOND),
    )
    return (
        f"On the {tokens:,} tokens that repeat text further back ({tokens / share:.1%} of those beyond the trained "
        f"length), it differs from truncation by {change_cell(change, SENTENCE)} nats."
    )
