"""The tests of what depends on versions, with the newest ones that pip finds and pyproject.toml accepts."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from environments import environment
from other_versions import installed, passed
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


@pytest.fixture(scope="module")
def newest(repository: Path) -> dict[str, str]:
    """The versions that pip would install for the dependencies where there is none of them yet."""
    asked = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    words = ["install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-", *asked]
    done = subprocess.run([sys.executable, "-m", "pip", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    found = [each["metadata"] for each in json.loads(done.stdout)["install"]]
    versions = {canonicalize_name(each["name"]): each["version"] for each in found}
    return {name: versions[canonicalize_name(name)] for name in (Requirement(each).name for each in asked)}


@pytest.mark.engines
def test_the_suite_passes_with_the_newest_versions_of_everything(
    newest: dict[str, str], repository: Path, tmp_path: Path
) -> None:
    python = environment("newest", *[f"{name}=={version}" for name, version in newest.items()])
    assert installed(python, list(newest)) == [version.split("+")[0] for version in newest.values()]
    assert passed(python, repository, tmp_path) > 1000
