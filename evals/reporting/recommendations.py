"""The page's part about recommendations: the answer, every candidate, and the finalists with their intervals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from ..metrics.cells import around, digits, interval_cell, signed
from ..recommending.results import Recommendation
from .runs import StoredRun


def sections(runs: Iterable[StoredRun]) -> list[dict[str, object]]:
    """Returns the data of each recommendation among the runs."""
    return [_section(run) for run in runs if run.kind == Recommendation.kind]


def headline(results: Mapping[str, Any]) -> str:
    """Returns the answer, with what truncation gives instead."""
    (answer,) = results["answer"]
    return " ".join(filter(None, [answer["answer"], answer["truncation"]]))


def _section(run: StoredRun) -> dict[str, object]:
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
        "finalists": [{**named(row), "cells": _cells(row)} for row in results["paired"]],
        "names": names,
    }


def _cells(row: Mapping[str, Any]) -> list[str]:
    """Returns a finalist's cells: perplexities, its difference, and the loss of far repeats and of the others."""
    own = row["schedule"] == row["baseline"]
    change = "-" if own else f"{signed(row['delta'])}{around(row['delta'], row['low'], row['high'], sign='+')}"
    far, others = ("-" if row[name] is None else f"{row[name]:.3f}" for name in ("far", "others"))
    ppl = interval_cell(row["ppl"], row["ppl_low"], row["ppl_high"])
    return [ppl, digits(row["short_ppl"], 4), change, far, others]
