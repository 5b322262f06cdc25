"""Searches that are stopped, and what the next call still has to compute."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ropescale.evals.searching.gradient import Steps
from ropescale.evals.searching.learner import Learner


def check_slopes(loss: Callable[[Any], float], point: Any, slopes: Any, names: Any) -> None:
    """Compares the gradient at a point with differences of a loss that is computed otherwise, number by number."""
    step = 3e-3
    for number, (slope, name) in enumerate(zip(slopes, names, strict=True)):
        ahead, behind = (loss((*point[:number], point[number] + by, *point[number + 1 :])) for by in (step, -step))
        assert slope == pytest.approx((ahead - behind) / (2 * step), rel=2e-2, abs=2e-4), name


def record_fed(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Returns a list to which the ids of every window are added once it is fed."""
    fed: list[list[int]] = []
    for name in ("nll_of", "backward"):
        whole = getattr(Learner, name)
        monkeypatch.setattr(
            Learner, name, lambda self, ids, *rest, whole=whole: fed.append(ids.tolist()) or whole(self, ids, *rest)
        )
    return fed


def stop_after(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Presses Ctrl-C once so many steps are done."""
    take, done = Steps.take, []

    def stopping(self, compute, sizes):
        if len(done) == steps:
            raise KeyboardInterrupt
        done.append(compute)
        return take(self, compute, sizes)

    monkeypatch.setattr(Steps, "take", stopping)


def check_resumed(search: Callable[[Path], Any], found: Any, steps: int, tmp_path: Path, monkeypatch) -> Path:
    """Stops a search after so many steps and calls it again: it finds the same, and computes only the others.

    Returns:
        The schedule's file.
    """
    file = tmp_path / "factors.json"
    with monkeypatch.context() as patched:
        stop_after(patched, steps)
        with pytest.raises(KeyboardInterrupt):
            search(file)
    assert not file.exists()
    fed = record_fed(monkeypatch)
    resumed = search(file)
    whole, again = found.search, resumed.search
    assert (again.checks, again.steps, again.spent) == (whole.checks, whole.steps, whole.spent)
    assert resumed.comparison.rows == found.comparison.rows
    done = sorted([*whole.checks, *whole.steps], key=lambda trial: trial.spent)[:steps]
    assert sum(map(len, fed)) == whole.spent - max((trial.spent for trial in done), default=0)
    return file
