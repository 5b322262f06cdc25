"""Searches that are stopped, and what the next call still has to query."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ropescale.evals.searching.learner import Evaluator


def check_slopes(loss: Callable[[Any], float], point: Any, slopes: Any, names: Any) -> None:
    """Compares the gradient at a point with differences of a loss that is computed otherwise, number by number."""
    step = 3e-3
    for number, (slope, name) in enumerate(zip(slopes, names, strict=True)):
        ahead, behind = (loss((*point[:number], point[number] + by, *point[number + 1 :])) for by in (step, -step))
        assert slope == pytest.approx((ahead - behind) / (2 * step), rel=2e-2, abs=2e-4), name


def stop_after(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Presses Ctrl-C once so many steps are answered."""
    answered, done = Evaluator.answer, []

    def stopping(self, query):
        if len(done) == steps:
            raise KeyboardInterrupt
        done.append(query)
        return answered(self, query)

    monkeypatch.setattr(Evaluator, "answer", stopping)


def check_resumed(search: Callable[[Path], Any], found: Any, steps: int, tmp_path: Path, monkeypatch) -> Path:
    """Stops a search after so many steps and calls it again: it finds the same, and asks only what is left.

    Returns:
        The schedule's file.
    """
    file = tmp_path / "factors.json"
    with monkeypatch.context() as patched:
        stop_after(patched, steps)
        with pytest.raises(KeyboardInterrupt):
            search(file)
    assert not file.exists()
    answered, later = Evaluator.answer, []
    monkeypatch.setattr(Evaluator, "answer", lambda self, query: later.append(query) or answered(self, query))
    resumed = search(file)
    assert (resumed.checks, resumed.steps, resumed.spent) == (found.checks, found.steps, found.spent)
    assert len(later) == len(found.checks) + len(found.steps) + 3 - steps  # what is found and the others come last
    return file
