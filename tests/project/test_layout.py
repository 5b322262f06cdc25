"""The layout that CONTRIBUTING.md promises: imports point down and in no circle, names are unique."""

import ast
import re
from collections import Counter
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

MOST_PARAMETERS = 12
# Modules whose functions spell out the options of a measurement, as keywords.
WITH_OPTIONS = ("evals.api", "evals.training.callback")


@pytest.fixture(scope="module")
def sources(repository) -> dict[str, Path]:
    """Every module of the package: its dotted name, without ``ropescale.``, and its file."""
    found = {}
    for folder in ("ropescale", "cli", "evals"):
        for path in (repository / folder).rglob("*.py"):
            parts = path.relative_to(repository).with_suffix("").parts
            parts = parts[1:] if parts[0] == "ropescale" else parts
            found[".".join(part for part in parts if part != "__init__")] = path
    return found


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(name: str, path: Path, names: set[str]) -> set[str]:
    """The modules that one imports, inside functions and for type checkers too."""
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    found = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = [*package[: len(package) - node.level + 1], *(node.module or "").split(".")]
            origin = ".".join(filter(None, base))
            found |= {full if (full := f"{origin}.{each.name}".strip(".")) in names else origin for each in node.names}
    return {each for each in found if each in names and each != name}


@pytest.fixture(scope="module")
def graph(sources) -> dict[str, set[str]]:
    """The modules that each module imports."""
    modules = {name: path for name, path in sources.items() if path.name != "__init__.py"}
    return {name: imported(name, path, set(modules)) for name, path in modules.items()}


def test_no_circle_of_imports_and_they_point_down(graph):
    list(TopologicalSorter(graph).static_order())  # raises CycleError, which names the circle
    rank = {"evals": 1, "cli": 2, "__main__": 3}
    for name, others in graph.items():
        for other in others:
            assert rank.get(other.split(".")[0], 0) <= rank.get(name.split(".")[0], 0), f"{name} imports {other}"


def test_no_circle_of_packages(graph, sources):
    """A package is a folder; a module at the top of ``ropescale``, ``evals`` or ``cli`` is one of its own."""
    packages = {name for name, path in sources.items() if path.name == "__init__.py"}
    home = {name: up if (up := name.rpartition(".")[0]) in packages - {"", "evals", "cli"} else name for name in graph}
    above: dict[str, set[str]] = {package: set() for package in home.values()}
    for name, others in graph.items():
        above[home[name]] |= {home[other] for other in others} - {home[name]}
    list(TopologicalSorter(above).static_order())  # raises CycleError, which names the circle


def test_no_two_classes_have_one_name(sources):
    nodes = [node for path in sources.values() for node in tree(path).body]
    classes = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))
    assert not [name for name, count in classes.items() if count > 1]


def test_functions_have_few_parameters(sources):
    for name, path in sources.items():
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef) and not any("command" in ast.unparse(d) for d in node.decorator_list):
                given = [*node.args.posonlyargs, *node.args.args]
                given += [] if name in WITH_OPTIONS else node.args.kwonlyargs
                parameters = [each for each in given if each.arg not in ("self", "cls")]
                assert len(parameters) <= MOST_PARAMETERS, f"{name}: {node.name}"


def test_every_file_that_contributing_names_is_there(repository):
    page = (repository / "CONTRIBUTING.md").read_text(encoding="utf-8")
    new = set(re.findall(r"^New file `([^`]+)`", page, re.MULTILINE))
    named = set(re.findall(r"`((?:ropescale|evals|cli|tests|docs)/[\w/.]+?)`", page)) - new
    assert len(named) > 30
    top, layout = "", page.split("## Layout")[1].split("```")[1]
    for indent, name in re.findall(r"^( {0,2})([\w.]+(?:/|\.py)) ", layout, re.MULTILINE):
        top = top if indent else name
        named.add(f"{top}{name}" if indent else top)
    assert not [name for name in named if not (repository / name).exists()]
