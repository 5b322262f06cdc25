"""The first sentences of the page: what each run found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...output.formatting import listed
from ..metrics.against_truncation import verdict
from ..metrics.cells import change_cell, digits
from ..metrics.guessing import worse_than_a_guess
from ..metrics.paired import PairedRow, short_length
from ..recommending.results import Recommendation
from ..results.result import Result
from ..searching.results import SearchResult
from . import recommendations, searches
from .runs import StoredRun, refusing_damage


@refusing_damage
def headline(run: StoredRun) -> str | None:
    """Returns a run's main result in a few sentences; None where there is nothing to say."""
    if run.kind == Recommendation.kind:
        return recommendations.headline(run.results)
    if run.kind == SearchResult.kind:
        return searches.headline(run.results)
    if run.result is None:
        return _answered(run.results["rows"], run.results["protocol"].get("named", {}))
    if guessed := worse_than_a_guess(run.result):
        return guessed
    rows, named = run.result.against_truncation, run.result.named
    said = [_compared(run.result), *(verdict(rows, named) if rows else [])]
    return " ".join(filter(None, said)) or None


def _compared(result: Result) -> str | None:
    longest = result.lengths[-1]
    changes = sorted((row for row in result.paired if row.length == longest), key=lambda row: row.delta_nll)
    if not changes:
        return None
    best, baseline = changes[0], changes[0].baseline
    name, other = result.named(best.schedule), result.named(baseline)
    where = f"At {longest:,} tokens{_times(longest, result.trained_length)}"
    if best.delta_nll >= 0:
        return f"{where}, no schedule lowers the loss of {other}: {name} changes it by {_nats(best)}."
    ppl = {row.schedule: row.ppl for row in result.rows if row.length == longest}
    most = f", the lowest of {len(changes)}" if len(changes) > 1 else ""
    said = (
        f"{where}, {name} changes the loss of {other} by {_nats(best)}{most} "
        f"(perplexity {digits(ppl[best.schedule], 4)} instead of {digits(ppl[baseline], 4)}){_doubt(result, best)}."
    )
    following = [f"Next is {result.named(row.schedule)}, with {_nats(row)}." for row in changes[1:2]]
    return " ".join([said, *_cost(result, best), *following])


def _times(length: int, trained: int | None) -> str:
    """Returns how the length stands to the trained one; nothing where that is not known or not exceeded."""
    if trained is None or length <= trained:
        return ""
    return f", {length / trained:.3g} times the {trained:,} of its training"


def _nats(row: PairedRow) -> str:
    return f"{change_cell(row.change)} nats per token"


def _doubt(result: Result, row: PairedRow) -> str:
    """Says what the schedule is not told apart from, by intervals that hold for all schedules and lengths together."""
    if row.low is None or row.high is None:
        return ", without an interval"
    if row.high >= 0:
        return ", which its interval does not tell from zero"
    others = [each.not_apart for each in result.best if (each.length, each.schedule) == (row.length, row.schedule)]
    if not any(others):
        return ""
    names = listed(map(result.named, others[0]))
    return f", and is not told apart from {names} where the intervals hold for all comparisons together"


def _cost(result: Result, best: PairedRow) -> list[str]:
    """Returns what the best schedule costs within the trained length."""
    short = short_length(result.lengths, result.trained_length)
    found = [row for row in result.paired if (row.schedule, row.length) == (best.schedule, short)]
    return [f"Within the trained length, at {short:,} tokens, it changes the loss by {_nats(row)}." for row in found]


def _answered(rows: list[dict[str, Any]], names: Mapping[str, str]) -> str | None:
    overall = [row for row in rows if row.get("depth") is None]
    if not overall:
        return None
    if not any(row["correct"] for row in overall):
        return "No schedule answers anything at any length."
    longest = max(row["length"] for row in overall)
    there = sorted((row for row in overall if row["length"] == longest), key=lambda row: -row["accuracy"])
    parts = [f"{names.get(row['schedule'], row['schedule'])} answers {row['accuracy']:.0%}" for row in there]
    return f"At {longest:,} tokens {', '.join(parts)}."
