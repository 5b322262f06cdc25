"""The pieces of ``make bench`` whose figures are known."""

from __future__ import annotations

import os
import subprocess
import sys
import time
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


def test_the_exponent_of_a_power_law_is_found(bench):
    sizes = [1.0, 2.0, 8.0, 64.0]
    assert bench["sides"].slope(sizes, [3 * size**1.5 for size in sizes]) == pytest.approx(1.5, abs=1e-12)


def test_the_line_through_points_is_found_with_its_largest_departure(bench):
    start, slope, off = bench["sides"].line([0.0, 1.0, 2.0], [1.0, 4.0, 4.0])
    assert (start, slope) == pytest.approx((1.5, 1.5)) and off == pytest.approx(0.5)
    assert bench["sides"].line([1.0, 2.0], [3.0, 5.0]) == pytest.approx((1.0, 2.0, 0.0))


def test_a_busy_core_is_noticed(bench):
    sides, others = bench["sides"], bench["sides"].busy(0.2)
    spinning = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        time.sleep(0.5)  # Python starts
        assert min(sides.busy(0.5), os.cpu_count()) > 0.2
    finally:
        spinning.kill()
        spinning.wait()
    assert 0 <= others <= os.cpu_count() + 0.5


def test_what_is_not_installed_is_left_out(bench, monkeypatch, capsys):
    harness = bench["harness"]
    monkeypatch.setattr(harness.importlib.util, "find_spec", lambda name: None)
    monkeypatch.delenv("LM_EVAL_PYTHON", raising=False)
    assert harness.measure(1.0) == [] and "LM_EVAL_PYTHON" in capsys.readouterr().out
    monkeypatch.setenv("LM_EVAL_PYTHON", "/some/python")
    assert harness.interpreter() == "/some/python"


def test_rounds_end_with_the_time_and_are_three_at_least(bench):
    done: list[str] = []
    seen = bench["sides"].in_turn({"a": "a", "b": "b"}, 0.0, lambda name: float(len(done.append(name) or done)))
    assert done == ["a", "b"] * 4  # the first round does not count
    assert seen == {"a": [3.0, 5.0, 7.0], "b": [4.0, 6.0, 8.0]}


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
