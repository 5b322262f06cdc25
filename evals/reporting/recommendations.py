"""The page's part about recommendations: the answer, every candidate, and the finalists with their intervals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from ..recommending.evidence import FinalistRow
from ..recommending.metrics import cells
from ..recommending.results import Recommendation
from .runs import StoredRun, refusing_damage


def sections(runs: Iterable[StoredRun]) -> list[dict[str, object]]:
    """Returns the data of each recommendation among the runs."""
    return [_section(run) for run in runs if run.kind == Recommendation.kind]


def headline(results: Mapping[str, Any]) -> str:
    """Returns the answer."""
    (answer,) = results["answer"]
    return answer["answer"]


@refusing_damage
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
        "finalists": [{**named(row), "cells": cells(FinalistRow(**row))} for row in results["paired"]],
        "names": names,
    }
