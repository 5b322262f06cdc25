"""The text of the recommendation: the schedule, its perplexity and cost, and the alternative of truncation.

All figures are perplexities and their relative changes; the rows contain the losses in nats.
"""

import math

from ..facts import AS_IS, TRUNCATION
from ..metrics.cells import digits, exp, percent
from ..metrics.verdicts import too_few, worse_than_a_guess
from .evidence import AnswerRow, Evidence
from .options import Objective
from .race import LEARNING, difference, estimate


def answer(evidence: Evidence) -> AnswerRow:
    """Returns the recommendation."""
    decision = evidence.decision
    settled = not evidence.objective.is_beyond
    few = too_few(evidence.comparison.texts, "documents to test on")
    chosen = AS_IS if settled else decision.chosen
    guessed = worse_than_a_guess(evidence.losses)
    said = _sentences(evidence, few)
    if guessed:  # statements that do not depend on losses
        said = [guessed, *said] if settled else [guessed]
    named = not guessed and chosen != AS_IS
    return AnswerRow(
        schedule=chosen,
        decided=settled or not (decision.open or guessed or few),
        sentences=said,
        command=evidence.patch_command(chosen) if named else "",
        open=decision.open,
        equal=decision.equal,
        note=_note(evidence, chosen) if named else "",
        serve=evidence.export_command if named else "",
        guessed=bool(guessed),
    )


def not_needed(goal: Objective) -> str:
    """Returns a sentence saying that the target is within the trained length."""
    return f"Nothing is needed: the model was trained at {goal.trained:,} tokens, and {goal.target:,} is within that."


def cannot_decide(documents: int, target: int, search: bool) -> str:
    """Returns a warning that there are too few test documents for a verdict; "" if there are enough.

    Args:
        documents: the number of documents to test on.
        target: the number of tokens of a window.
        search: whether some documents are kept for a search.
    """
    few = too_few(documents, f"documents of {target:,} tokens to test on")
    kept = f", besides {LEARNING} for the search" if search else ""
    return (
        f"this text cannot decide: {few}{kept}; the schedule with the lowest loss is named all the same" if few else ""
    )


def _sentences(evidence: Evidence, few: str) -> list[str]:
    """Names the recommended schedule, and compares it with all other schedules and with truncation."""
    goal = evidence.objective
    decision = evidence.decision
    name = evidence.candidates.named
    if not goal.is_beyond:
        return [not_needed(goal)]
    chosen = name(decision.chosen)
    share = f"{math.expm1(evidence.options.tolerance):.1%} of perplexity"
    if few:
        said = f"Undecided, because {few}: of the schedules, {chosen} has the lowest loss."
    elif decision.open:
        first, *more = decision.open
        others = f"{name(first)}{f' or {len(more)} more' if more else ''}"
        said = f"Undecided: of the schedules, {chosen} has the lowest loss, but {others} may be better by more than "
        said += f"{share}."
    elif decision.chosen == AS_IS:
        said = f"Leave the model unchanged ({AS_IS}): no schedule is better by more than {share}."
    else:
        said = f"Of the schedules, use {chosen}: no other is better by more than {share}."
    return [*filter(None, [said, _perplexities(evidence), against_truncation(evidence)])]


def _perplexities(evidence: Evidence) -> str:
    """Returns a sentence on the chosen schedule's perplexity at the target, next to those of the usual choices.

    The sentence also has the cost within the trained length.
    """
    goal = evidence.objective
    candidates = evidence.candidates
    chosen = evidence.decision.chosen
    held_out = evidence.comparison
    ppl = {}
    for spec in (chosen, AS_IS, candidates.usual):
        ppl[spec] = digits(exp(estimate(held_out, {goal.target: 1}, spec).mean), 4)
    own = ppl.pop(chosen)
    against = ", ".join(f"{candidates.named(spec)} {figure}" for spec, figure in ppl.items())
    place = f"At {goal.target:,} tokens (factor {goal.target / goal.trained:.4g}; measure again for another)"
    said = f"{place} its perplexity is {own}{f' ({against})' if against else ''}"
    if chosen == AS_IS:
        return f"{said}."
    cost = percent(difference(held_out, {goal.short: 1}, chosen, AS_IS, evidence.level))
    return f"{said}; at {goal.short:,}, {cost} against {AS_IS}."


def against_truncation(evidence: Evidence) -> str:
    """Compares truncation with the chosen schedule, by the interval; "" if truncation was not measured."""
    if not evidence.truncates:
        return ""
    chosen = evidence.decision.chosen
    held_out = evidence.comparison
    change = difference(held_out, evidence.objective.weights, TRUNCATION, chosen, evidence.level)
    said = f"truncating the input to its last {evidence.objective.short:,} tokens"
    mean = percent(change)
    if change.sign is None:
        return f"Whether {said} is better is undecided: {mean}."
    if change.sign > 0:
        return f"T{said[1:]} is worse: {mean}."
    said = f"T{said[1:]} is better: {mean}" if change.sign else f"Whether {said} is better is undecided: {mean}"
    repeats = evidence.far_repeats(chosen).minus(evidence.far_repeats(TRUNCATION))
    far = held_out.average(*repeats, evidence.level)
    other = "the full input" if chosen == AS_IS else "the schedule"
    if far.sign == -1:
        return f"{said}; choose {other} if text repeats what is further back ({percent(far)} there)."
    return f"{said}; choose {other} if the task needs text further back."


def _note(evidence: Evidence, chosen: str) -> str:
    """Explains how a schedule whose tables depend on the length differs in use from its measurement; else "".

    Also names a fixed schedule with the measured tables, if there is one.
    """
    candidates = evidence.candidates.candidates
    [candidate] = [each for each in candidates if each.spec == chosen]
    if not candidate.held:
        return ""
    fixed = [each.spec for each in candidates if each.tables == candidate.held]
    same = f"; {fixed[0]} is that table at any length" if fixed else ""
    return (
        f"The table of {evidence.candidates.named(chosen)} depends on the length: the measurement used the table at "
        f"{evidence.objective.target:,}, the folder keeps max_position_embeddings {candidate.reach}, and cached "
        f"decoding and most engines differ{same}."
    )
