"""The pieces of ``make bench`` whose figures are known."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

NAMES = ("sides", "models", "recipes", "harness", "page", "texts")


@pytest.fixture
def bench(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The modules of the benchmarks, which are no package."""
    monkeypatch.syspath_prepend(str(repository / "tests" / "tools" / "benchmarks" / "bench"))
    yield {name: import_module(name) for name in NAMES}
    for name in NAMES:
        sys.modules.pop(name, None)


def test_a_ratio_is_the_median_of_the_rounds_and_its_range(bench):
    [row] = bench["sides"].ratios({"a": [1.0, 2.0, 3.0], "b": [2.0, 2.0, 12.0]}, "a")
    assert (row.value, row.low, row.high, row.rounds) == (2.0, 1.0, 4.0, 3)


def test_windows_are_the_scripts_and_what_they_lose_is_counted(bench):
    recipes = bench["recipes"]
    assert list(recipes._slid(10, 4, 3)) == [(0, 4, 0), (3, 7, 4), (6, 10, 7)]
    assert list(recipes.guide(12, 4)) == [(0, 4, 0), (4, 8, 4), (8, 12, 8)]
    assert recipes.lost(12, 4, recipes.guide) == 2  # tokens 4 and 8: ``labels`` are shifted inside a window
    assert recipes.lost(300, 280, recipes.sliding) == 0
    assert list(recipes.truncated(100, 30)) == [(0, 30, 0)]


def test_truncations_windows_end_with_the_tokens_that_they_score(bench):
    windows = list(bench["texts"].truncated(list(range(10)), 4, 2))
    assert windows == [[2, 3, 4, 5], [4, 5, 6, 7], [6, 7, 8, 9]]  # 4 and 5, 6 and 7, 8 and 9


def test_the_page_has_every_figure_with_its_command(bench):
    rows = [bench["sides"].Row("this, over that", 2.0, 1.5, 2.5, "x", 5, "a note"), bench["sides"].Row("a size", 7.25)]
    about = {"recipes": "About", "processes": "Two at a time"}
    text = bench["page"].written({"recipes": rows, "processes": []}, about, {"Python": "3"})
    assert "## Two at a time\n\nNot measured in this run: `python tests/tools/benchmarks/bench processes`" in text
    assert "`python tests/tools/benchmarks/bench recipes`" in text
    assert "| this, over that | 2 x (1.5 to 2.5) | 5 | a note |" in text and "| a size | 7.25 x | 1 |  |" in text
