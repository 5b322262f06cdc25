"""The page's part about searches: the schedule, each pair's divisor, and the held-out loss against tokens spent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from ..metrics.cells import around, interval_cell, signed
from ..searching.metrics import FOUND
from ..searching.results import SearchResult
from .runs import StoredRun


def sections(runs: Iterable[StoredRun]) -> list[dict[str, object]]:
    """Returns the data of each search among the runs."""
    return [_section(run) for run in runs if run.kind == SearchResult.kind]


def headline(results: Mapping[str, Any]) -> str:
    """Returns what was found, and what it gains on the held-out text."""
    (found,), protocol = results["found"], results["protocol"]
    row = max(results["paired"], key=lambda row: row["length"])
    change = f"{signed(row['delta_nll'])}{around(row['delta_nll'], row['low'], row['high'], sign='+')} nats"
    return (
        f"At {row['length']:,} tokens the searched schedule changes the loss of {row['baseline']} by {change} per "
        f"token, on text that was held out ({protocol['method']}, {found['tokens']:,} tokens): {found['spec']}"
    )


def _section(run: StoredRun) -> dict[str, object]:
    results = cast(Mapping[str, Any], run.results)
    protocol, (found,) = results["protocol"], results["found"]
    changes = {row["length"]: row for row in results["paired"]}
    start = next(row["baseline"] for row in results["paired"])
    cells = {(row["schedule"], row["length"]): _ppl(row) for row in results["rows"]}
    return {
        "run": run.name,
        "method": protocol["method"],
        "spec": found["spec"],
        "start": start,
        "spent": found["tokens"],
        "rows": [
            {"length": n, "cells": [cells[start, n], cells[FOUND, n], _change(row)]} for n, row in changes.items()
        ],
        "divisors": results["divisors"],
        "history": [row for row in results["history"] if row["held_out"]],
    }


def _ppl(row: Mapping[str, Any]) -> str:
    return interval_cell(row["ppl"], row["ppl_low"], row["ppl_high"])


def _change(row: Mapping[str, Any]) -> str:
    return f"{signed(row['delta_nll'])}{around(row['delta_nll'], row['low'], row['high'], sign='+')}"
