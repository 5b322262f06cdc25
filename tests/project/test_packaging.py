"""The package list, the wheel, and a clone that was never installed."""

import os
import re
import shutil
import tomllib
import zipfile
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from ropescale.configs.class_defaults import LOWEST

FOLDERS = {"ropescale": "ropescale", "ropescale.cli": "cli", "ropescale.evals": "evals"}
SOURCES = ("ropescale", "cli", "evals", "pyproject.toml", "README.md", "LICENSE")


@pytest.fixture(scope="session")
def settings(repository: Path) -> dict:
    return tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def clone(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources alone, as a fresh clone has them."""
    root = tmp_path_factory.mktemp("clone")
    for name in SOURCES:
        source = repository / name
        if source.is_dir():
            shutil.copytree(source, root / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, root / name)
    return root


@pytest.fixture(scope="session")
def wheel(clone: Path, build) -> zipfile.ZipFile:
    """The wheel named by ROPESCALE_WHEEL, else one built here from the sources."""
    built = os.environ.get("ROPESCALE_WHEEL")
    return zipfile.ZipFile(built or build(clone, "wheel"))


def tree_packages(repository: Path) -> set[str]:
    """Every folder with Python in it under the three mapped ones, by its installed name."""
    found = set()
    for package, folder in FOLDERS.items():
        for file in (repository / folder).rglob("*.py"):
            inside = file.parent.relative_to(repository / folder).parts
            found.add(".".join([package, *inside]))
    return found


def test_the_packages_listed_are_the_packages_in_the_tree(repository, settings):
    assert set(settings["tool"]["setuptools"]["packages"]) == tree_packages(repository)


def test_the_wheel_holds_every_source_file_and_all_data_byte_for_byte_and_is_a_command_with_a_licence(wheel, clone):
    expected = {
        f"{package.replace('.', '/')}/{file.relative_to(clone / folder).as_posix()}": file
        for package, folder in FOLDERS.items()
        for file in (clone / folder).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    names = [name for name in wheel.namelist() if not name.endswith("/")]
    about = {name for name in names if re.match(r"ropescale-[\d.]+\.dist-info/", name)}
    assert "ropescale/py.typed" in expected
    assert set(names) - about == set(expected)
    assert [name for name, file in expected.items() if wheel.read(name) != file.read_bytes()] == []
    assert [name for name in about if name.endswith("licenses/LICENSE")]
    [entry] = [name for name in about if name.endswith("entry_points.txt")]
    assert "ropescale = ropescale.cli.main:main" in wheel.read(entry).decode()


def test_a_never_installed_clone_runs_as_it_lies(clone, python):
    """``-S`` hides every installed package, so the clone's own path is all there is; click is lent by a path."""
    import click

    lent = str(Path(click.__file__).parent.parent)
    code = f"import sys; sys.path.append({lent!r}); import ropescale.cli.main as m; print(m.__file__); m.main(['-h'])"
    done = python("-S", "-c", code, cwd=clone, env={"PYTHONPATH": str(clone)})
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.splitlines()[0]) == clone / "cli" / "main.py"
    assert "Commands:" in done.stdout


def pins_of(path: Path) -> dict[str, str]:
    lines = path.read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pins.items()}


def test_every_pin_satisfies_the_bounds(repository, settings):
    pins, project = pins_of(repository / "constraints.txt"), settings["project"]
    wanted = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    for requirement in map(Requirement, wanted):
        assert pins[canonicalize_name(requirement.name)] in requirement.specifier, requirement


def test_the_lowest_versions_that_are_tested_are_the_lower_bounds(repository, settings):
    lowest = pins_of(repository / "constraints-lowest.txt")
    wanted = {canonicalize_name(each.name): each for each in map(Requirement, settings["project"]["dependencies"])}
    assert lowest.keys() == wanted.keys()
    for name, requirement in wanted.items():
        [bound] = [each.version for each in requirement.specifier if each.operator == ">="]
        assert Version(lowest[name]) == Version(bound), requirement
    assert Version(LOWEST) == Version(lowest["transformers"])
