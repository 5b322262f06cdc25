"""The page's parts that are tables: each source of an evaluation, recommendations, and searches."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

from ..metrics.cells import change_cell, interval_cell
from ..recommending.evidence import FinalistRow
from ..recommending.metrics import cells
from ..results.result import Result
from ..searching.metrics import FOUND, HELD, missing
from ..searching.options import TEXT
from ..statistics.intervals import Estimate
from .runs import StoredRun, refusing_damage

_MINUS = re.compile(r"(?<![^\s(])-(?=\d)")
_EXACT = ("schedule", "schedules", "spec", "command", "serve", "same", "open", "equal", "baseline", "start", "run")
"""Keys whose texts are pasted or compared, and stay as they are."""


def typographic(value: Any) -> Any:
    """Returns the data of a section with "−" before the numbers of its texts, as the page's script writes them."""
    if isinstance(value, str):
        return _MINUS.sub("−", value)
    if isinstance(value, dict):
        return {key: each if key in _EXACT else typographic(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [typographic(each) for each in value]
    return value


def source_tables(runs: Iterable[tuple[str, Result]]) -> list[dict[str, object]]:
    """Returns a table of each source of each run.

    Args:
        runs: each with its name.
    """
    return [_source_table(run, name, part) for run, result in runs for name, part in result.by_source.items()]


def _source_table(run: str, name: str, part: Result) -> dict[str, object]:
    """Returns how much text a source's table rests on, and its lines.

    A schedule's line has the perplexity and the change against the baseline at each length, and the change against
    truncation on the tokens that have more before them; ``beside`` heads that column, "" where it was not measured.
    """
    rows = {(row.schedule, row.length): row for row in part.rows}
    changes = {(row.schedule, row.length): row for row in part.paired}
    last = {row.schedule: row for row in part.against_truncation if row.length == part.lengths[-1]}
    lines = []
    for schedule in part.schedules:
        shown = []
        for length in part.lengths:
            row, change = rows.get((schedule, length)), changes.get((schedule, length))
            ppl = "-" if row is None else interval_cell(row.ppl, row.ppl_low, row.ppl_high, row.interval)
            shown.append((ppl, "" if change is None else change_cell(change.change)))
        against = change_cell(last[schedule].change()) if schedule in last else ""
        lines.append({"schedule": part.named(schedule), "cells": shown, "truncation": against})
    return {
        "run": run,
        "source": name,
        "over": part.extent,
        "lengths": part.lengths,
        "lines": lines,
        "beside": next((f"at {n.length:,} against the last {n.context:,} tokens" for n in last.values()), ""),
    }


@refusing_damage
def recommendation(run: StoredRun) -> dict[str, object]:
    """Returns the data of a recommendation."""
    results = cast(Mapping[str, Any], run.results)
    (answer,) = results["answer"]
    protocol = results["protocol"]
    names = protocol.get("named", {})

    def named(row: Mapping[str, Any]) -> dict[str, Any]:
        return {**row, "schedule": names.get(row["schedule"], row["schedule"])}

    return {
        "run": run.name,
        "answer": named(answer),
        "target": protocol["target_length"],
        "trained": protocol["trained_length"],
        "candidates": [named(row) for row in results["rows"]],
        "finalists": [{**named(row), "cells": cells(FinalistRow(**row))} for row in results["paired"]],
        "names": names,
    }


@refusing_damage
def search(run: StoredRun) -> dict[str, object]:
    """Returns the data of a search: changes are against the start, and the model as it is where it was measured."""
    results = cast(Mapping[str, Any], run.results)
    protocol, (found,) = results["protocol"], results["found"]
    target = max(row["length"] for row in results["paired"])
    others = [row["baseline"] for row in results["paired"] if row["length"] == target]
    changes = {
        (row["baseline"], row["length"]): change_cell(Estimate(row["delta_nll"], row["low"], row["high"]))
        for row in results["paired"]
    }
    cells = {
        (row["schedule"], row["length"]): interval_cell(row["ppl"], row["ppl_low"], row["ppl_high"])
        for row in results["rows"]
    }
    answers = HELD[protocol.get("objective", TEXT)] == "prompts"
    shown = list(dict.fromkeys(row["schedule"] for row in results["rows"]))
    return {
        "run": run.name,
        "method": f"{protocol['method']}, from answers to prompts" if answers else protocol["method"],
        "spec": found["spec"],
        "start": others[0],
        "spent": found["tokens"],
        "header": [*shown, *(f"{FOUND} minus {name} (nats)" for name in others)],
        "rows": [
            {
                "length": n,
                "cells": [
                    *(cells.get((name, n), "") for name in shown),
                    *(changes[name, n] if (name, n) in changes else missing(changes, n) for name in others),
                ],
            }
            for n in sorted({length for _, length in cells})
        ],
        "said": [found[name] for name in ("note", "verdict") if found.get(name)],
        "divisors": results["divisors"],
        "history": [row for row in results["history"] if row["held_out"]],
    }
