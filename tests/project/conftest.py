"""Fixtures of the tests of the repository itself."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

Build = Callable[[Path, str], Path]
COMMITTED = "1795000000"  # seconds since 1970, as .ci/release takes them from the commit


@pytest.fixture(scope="session")
def build(python, tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Builds ``sdist`` or ``wheel`` in a folder of sources and returns the file."""

    def run(sources: Path, kind: str) -> Path:
        out = tmp_path_factory.mktemp(kind)
        code = f"from setuptools import build_meta; build_meta.build_{kind}({str(out)!r})"
        done = python("-c", code, cwd=sources, env={"PYTHONPATH": "", "SOURCE_DATE_EPOCH": COMMITTED})
        assert done.returncode == 0, done.stderr
        [built] = out.iterdir()
        return built

    return run


@pytest.fixture
def with_helpers() -> dict[str, str]:
    """The environment of an interpreter that finds the helpers of the tests."""
    tests = Path(__file__).resolve().parents[1]
    path = [str(tests / "helpers"), str(tests.parent), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(path)}
