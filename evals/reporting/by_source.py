"""The page's tables of each source, for runs over several."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypedDict

from ..metrics.against_truncation import TruncationRow
from ..metrics.against_truncation import change_cell as truncation_cell
from ..metrics.base import mark
from ..metrics.cells import interval_cell
from ..metrics.paired import change_cell
from ..results.result import Result


class SourceLine(TypedDict):
    """A schedule's line: per length, the perplexity and the change against the baseline; and against truncation."""

    schedule: str
    cells: list[tuple[str, str]]
    truncation: str


class SourceTable(TypedDict):
    """The table of one source of a run.

    ``over`` says how much text it rests on; ``beside`` heads the column of truncation, "" where it was not measured.
    """

    run: str
    source: str
    over: str
    lengths: list[int]
    lines: list[SourceLine]
    beside: str


def tables(runs: Iterable[tuple[str, Result]]) -> list[SourceTable]:
    """Returns a table of each source of each run.

    Args:
        runs: each with its name.
    """
    return [_table(run, name, part) for run, result in runs for name, part in result.by_source.items()]


def _table(run: str, name: str, part: Result) -> SourceTable:
    rows = {(row.schedule, row.length): row for row in part.rows}
    changes = {(row.schedule, row.length): row for row in part.paired}
    last = {row.schedule: row for row in part.against_truncation if row.length == part.lengths[-1]}
    lines: list[SourceLine] = []
    for schedule in part.schedules:
        cells = []
        for length in part.lengths:
            row, change = rows.get((schedule, length)), changes.get((schedule, length))
            ppl = "-" if row is None else interval_cell(row.ppl, row.ppl_low, row.ppl_high) + mark(row.interval)
            cells.append((ppl, "" if change is None else change_cell(change)))
        lines.append({"schedule": part.named(schedule), "cells": cells, "truncation": _against(last.get(schedule))})
    return {
        "run": run,
        "source": name,
        "over": part.extent,
        "lengths": part.lengths,
        "lines": lines,
        "beside": next((f"at {n.length:,} against the last {n.context:,} tokens" for n in last.values()), ""),
    }


def _against(row: TruncationRow | None) -> str:
    """Writes the change against truncation on the tokens that have more before them."""
    return "" if row is None else truncation_cell(row.change())
