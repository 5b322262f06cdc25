"""Prints the table of docs/engines.md: how much is known of each engine, over all model types under yarn.

PYTHONPATH=tests/helpers python tests/tools/claims.py
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from planning import make_plan

from ropescale.engines import ENGINES
from ropescale.engines.base import as_it_lies
from ropescale.engines.exported import exported
from ropescale.errors import RopescaleError
from ropescale.planning.plan import Plan

OUTCOMES = Path(__file__).parents[1] / "helpers" / "model_coverage" / "coverage.json"


def plans() -> Iterator[Plan]:
    """Yields every model type's default configuration, patched with yarn where its defaults suffice."""
    for name in json.loads(OUTCOMES.read_text()):
        for layers in ("full", "all"):
            try:
                plan = make_plan({"model_type": name}, "yarn:factor=2", layers=layers, replace_scaling=True)
            except RopescaleError:
                try:
                    plan = make_plan({"model_type": name}, "yarn:factor=2", layers=layers)
                except RopescaleError:
                    continue
            yield plan
            break


def table() -> str:
    """Returns the table."""
    rows, every = [], list(plans())
    for engine in ENGINES.values():
        found: Counter[str] = Counter()
        for plan in every:
            done = exported(engine, as_it_lies("MODEL", plan.planned, plan.length), {})
            found["cannot" if done.refusal else done.ground] += 1
        counts = " | ".join(str(found[kind]) for kind in ("ran", "read", "cannot", "not known"))
        rows.append(f"| {engine.name} {engine.version.rpartition(' ')[2]} | {counts} |")
    head = [f"| {len(every)} model types, yarn | ran here | read | cannot | not known |", "|---|---:|---:|---:|---:|"]
    return "\n".join([*head, *rows])


if __name__ == "__main__":
    print(table())
