"""The first sentences of the page: what each run found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..metrics.against_truncation import pays_off, verdict
from ..metrics.best import BestRow
from ..metrics.best import said as lowest
from ..metrics.cells import change_cell, digits
from ..metrics.paired import PairedRow, short_length
from ..metrics.verdicts import too_few, worse_than_a_guess
from ..recommending.results import Recommendation
from ..results.result import Result
from ..searching.results import SearchResult
from .runs import StoredRun, refusing_damage
from .sections import found_by_search


@refusing_damage
def headline(run: StoredRun) -> str | None:
    """Returns a run's main result in a few sentences; None where there is nothing to say."""
    if run.kind == Recommendation.kind:
        return run.results["answer"][0]["answer"]  # type: ignore[typeddict-item]
    if run.kind == SearchResult.kind:
        return found_by_search(run.results)
    if run.result is None:
        return _answered(run.results["rows"], run.results["protocol"].get("named", {}))
    if guessed := worse_than_a_guess(run.result):
        return guessed
    rows, named = run.result.against_truncation, run.result.named
    said = [_compared(run.result), *(verdict(rows, named) if rows and pays_off(rows) else [])]
    return " ".join(filter(None, said)) or None


def _compared(result: Result) -> str | None:
    """Says which schedule has the lowest loss at the longest length; of too few documents, only the perplexities."""
    longest = result.lengths[-1]
    ppl = {row.schedule: row.ppl for row in result.rows if row.length == longest}
    if len(ppl) < 2:
        return None
    best = next((row for row in result.best if row.length == longest), None)
    where = f"At {longest:,} tokens{_times(longest, result.trained_length)}"
    shown = dict.fromkeys([best.schedule if best else min(ppl, key=ppl.__getitem__), result.baseline])
    figures = " and ".join(f"{digits(ppl[each], 4)} under {result.named(each)}" for each in shown if each in ppl)
    if best is None:
        few = too_few(max(row.documents for row in result.rows))
        return f"{where}, perplexity is {figures}{few and f'; {few}'}."
    first = f"{where}, the lowest loss is that of {lowest(best, result.named)} (perplexity {figures})."
    return " ".join([first, *_cost(result, best)])


def _times(length: int, trained: int | None) -> str:
    """Returns how the length stands to the trained one; nothing where that is not known or not exceeded."""
    if trained is None or length <= trained:
        return ""
    return f", {length / trained:.3g} times the {trained:,} of its training"


def _nats(row: PairedRow) -> str:
    return f"{change_cell(row.change)} nats per token"


def _cost(result: Result, best: BestRow) -> list[str]:
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
