"""The first sentences of the page: what each run found."""

from __future__ import annotations

from ..metrics.against_truncation import pays_off, verdict
from ..metrics.verdicts import worse_than_a_guess
from ..recommending.results import Recommendation
from ..retrieving.metrics import answered
from ..searching.results import SearchResult
from .runs import StoredRun, refusing_damage


@refusing_damage
def headline(run: StoredRun) -> str | None:
    """Returns a run's main result in a few sentences; None where there is nothing to say."""
    if run.kind == Recommendation.kind:
        return run.results["answer"][0]["answer"]  # type: ignore[typeddict-item]
    if run.kind == SearchResult.kind:
        return str(run.results["found"][0]["verdict"])  # type: ignore[typeddict-item]
    if run.result is None:
        return " ".join(answered(run.results["rows"], run.results["protocol"].get("named", {})))
    if guessed := worse_than_a_guess(run.result):
        return guessed
    rows, named = run.result.against_truncation, run.result.named
    said = run.result.sentences() if len(run.result.schedules) > 1 else []
    return " ".join([*said, *(verdict(rows, named) if rows and pays_off(rows) else [])]) or None
