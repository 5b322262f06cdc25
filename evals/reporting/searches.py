"""The page's part about searches: the schedule, each pair's divisor, and the held-out loss against tokens spent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from ..metrics.cells import change_cell, interval_cell
from ..searching.metrics import FOUND, HELD, missing
from ..searching.options import TEXT
from ..searching.results import SearchResult
from ..statistics.intervals import Estimate
from .runs import StoredRun, refusing_damage


def sections(runs: Iterable[StoredRun]) -> list[dict[str, object]]:
    """Returns the data of each search among the runs."""
    return [_section(run) for run in runs if run.kind == SearchResult.kind]


def headline(results: Mapping[str, Any]) -> str:
    """Returns what was found, and what it gains on the held-out text."""
    (found,), protocol = results["found"], results["protocol"]
    if found.get("verdict"):
        return found["verdict"]
    (row, *_) = _longest(results)
    change, held = f"{_change(row)} nats", HELD[protocol.get("objective", TEXT)]
    return (
        f"At {row['length']:,} tokens the searched schedule changes the loss of {row['baseline']} by {change} per "
        f"token, on {held} that {'was' if held == 'text' else 'were'} held out ({protocol['method']}, "
        f"{found['tokens']:,} tokens)."
    )


def _longest(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the changes at the target: against the start, then against the model as it is where it was measured."""
    target = max(row["length"] for row in results["paired"])
    return [row for row in results["paired"] if row["length"] == target]


@refusing_damage
def _section(run: StoredRun) -> dict[str, object]:
    results = cast(Mapping[str, Any], run.results)
    protocol, (found,) = results["protocol"], results["found"]
    changes = {(row["baseline"], row["length"]): row for row in results["paired"]}
    others = [row["baseline"] for row in _longest(results)]
    cells = {(row["schedule"], row["length"]): _ppl(row) for row in results["rows"]}
    shown = list(dict.fromkeys(row["schedule"] for row in results["rows"]))
    return {
        "run": run.name,
        "method": ", ".join(filter(None, [protocol["method"], _learned_from(protocol)])),
        "spec": found["spec"],
        "start": others[0],
        "spent": found["tokens"],
        "header": [*shown, *(f"{FOUND} minus {name} (nats)" for name in others)],
        "rows": [
            {
                "length": n,
                "cells": [
                    *(cells.get((name, n), "") for name in shown),
                    *(_change(changes[name, n]) if (name, n) in changes else missing(changes, n) for name in others),
                ],
            }
            for n in sorted({length for _, length in cells})
        ],
        "said": [found[name] for name in ("note", "verdict") if found.get(name)],
        "divisors": results["divisors"],
        "history": [row for row in results["history"] if row["held_out"]],
    }


def _learned_from(protocol: Mapping[str, Any]) -> str:
    """Says what was learned from, where that is no text."""
    return "from answers to prompts" if HELD[protocol.get("objective", TEXT)] == "prompts" else ""


def _ppl(row: Mapping[str, Any]) -> str:
    return interval_cell(row["ppl"], row["ppl_low"], row["ppl_high"])


def _change(row: Mapping[str, Any]) -> str:
    return change_cell(Estimate(row["delta_nll"], row["low"], row["high"]))
