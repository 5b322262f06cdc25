"""The page's tables of each source, for runs over several."""

from __future__ import annotations

from collections.abc import Iterable

from ..metrics.cells import change_cell, interval_cell
from ..results.result import Result


def tables(runs: Iterable[tuple[str, Result]]) -> list[dict[str, object]]:
    """Returns a table of each source of each run.

    Args:
        runs: each with its name.
    """
    return [_table(run, name, part) for run, result in runs for name, part in result.by_source.items()]


def _table(run: str, name: str, part: Result) -> dict[str, object]:
    """Returns how much text a source's table rests on, and its lines.

    A schedule's line has the perplexity and the change against the baseline at each length, and the change against
    truncation on the tokens that have more before them; ``beside`` heads that column, "" where it was not measured.
    """
    rows = {(row.schedule, row.length): row for row in part.rows}
    changes = {(row.schedule, row.length): row for row in part.paired}
    last = {row.schedule: row for row in part.against_truncation if row.length == part.lengths[-1]}
    lines = []
    for schedule in part.schedules:
        cells = []
        for length in part.lengths:
            row, change = rows.get((schedule, length)), changes.get((schedule, length))
            ppl = "-" if row is None else interval_cell(row.ppl, row.ppl_low, row.ppl_high, row.interval)
            cells.append((ppl, "" if change is None else change_cell(change.change)))
        against = change_cell(last[schedule].change()) if schedule in last else ""
        lines.append({"schedule": part.named(schedule), "cells": cells, "truncation": against})
    return {
        "run": run,
        "source": name,
        "over": part.extent,
        "lengths": part.lengths,
        "lines": lines,
        "beside": next((f"at {n.length:,} against the last {n.context:,} tokens" for n in last.values()), ""),
    }
