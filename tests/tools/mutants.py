"""Changes one operator or number of the source at a time, and shows which test notices.

``make mutants`` (or ``python tests/tools/mutants.py``) takes some minutes; it prints a table, and exits
with 1 where a mutant survives. Mutants are chosen by a seed, and tried in a copy of the sources.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

TARGETS: dict[str, tuple[str, int, str]] = {
    "schedules": (
        "ropescale/schedules/{base_change,by_parts,clipping,llama3,longrope}.py",
        14,
        "tests/schedules tests/planning",
    ),
    "geometry": ("ropescale/rope.py", 8, "tests/schedules tests/configs/test_rope.py"),
    "plans": (
        "ropescale/planning/*.py",
        14,
        "tests/planning tests/core tests/inspecting tests/cli/test_patch.py tests/models/test_transformers_oracle.py "
        "tests/configs/test_rope.py tests/configs/test_lengths_found.py",
    ),
    "scoring": (
        "evals/scoring/{scorer,batches}.py",
        12,
        "tests/evals/scoring/test_scorer.py tests/evals/running/test_batches.py tests/evals/scoring/test_executor.py "
        "tests/evals/running/test_comparing.py",
    ),
    "statistics": (
        "evals/statistics/intervals.py",
        10,
        "tests/evals/statistics tests/evals/results tests/evals/metrics",
    ),
    "tables": (
        "evals/metrics/*.py",
        12,
        "tests/evals/metrics tests/evals/running/test_perplexity.py tests/evals/results/test_results.py "
        "tests/evals/data tests/evals/reporting",
    ),
}
"""By name: the files, how many mutants of them, and the tests that should notice."""

_SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Lt: ast.LtE, ast.LtE: ast.Lt,
    ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "floor": "ceil", "ceil": "floor"}


@dataclass(frozen=True)
class Mutant:
    """One change of a file: the text between two offsets (in bytes), and what replaces it."""

    path: Path
    line: int
    start: int
    stop: int
    old: str
    new: str

    def write(self, root: Path) -> None:
        """Writes the changed file below ``root``."""
        content = (ROOT / self.path).read_bytes()
        (root / self.path).write_bytes(content[: self.start] + self.new.encode() + content[self.stop :])


def mutants(path: Path) -> Iterator[Mutant]:
    """Yields every mutant of a file."""
    content = (ROOT / path).read_bytes()
    starts = [0]
    for line in content.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    tree = ast.parse(content)
    skipped = {id(inner) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        changed = None if id(node) in skipped else _changed(node)
        if changed is not None:
            assert isinstance(node, ast.expr) and node.end_lineno and node.end_col_offset
            start, stop = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
            old = content[start:stop].decode()
            yield Mutant(path, node.lineno, start, stop, " ".join(old.split()), f"({changed})")


def _changed(node: ast.AST) -> str | None:
    """Returns the expression with another operator, number or function; None where there is none to change."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _SWAPS:
        return ast.unparse(ast.Compare(node.left, [_SWAPS[type(node.ops[0])](), *node.ops[1:]], node.comparators))
    if isinstance(node, ast.BinOp) and type(node.op) in _SWAPS and not _is_text(node):
        return ast.unparse(ast.BinOp(node.left, _SWAPS[type(node.op)](), node.right))
    if isinstance(node, ast.BoolOp):
        return ast.unparse(ast.BoolOp(_SWAPS[type(node.op)](), node.values))
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return repr(node.value * 2 if isinstance(node.value, float) and node.value else node.value + 1)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _NAMES:
        return ast.unparse(ast.Call(ast.Name(_NAMES[node.func.id]), node.args, node.keywords))
    return None


def _is_text(node: ast.BinOp) -> bool:
    parts = [node.left, node.right]
    return any(isinstance(part, (ast.List, ast.JoinedStr, ast.Dict, ast.Tuple, ast.Set)) for part in parts) or any(
        isinstance(part, ast.Constant) and isinstance(part.value, str) for part in parts
    )


class _First:
    """A plugin of pytest that keeps the name of the first test that fails."""

    def __init__(self) -> None:
        self.name: str | None = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and self.name is None:
            self.name = report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and self.name is None:
            self.name = f"{report.nodeid} (when it is imported)"


def killer(mutant: Mutant | None, tests: str) -> str | None:
    """Returns the first test that fails with the mutant in place (or with none); None where all pass."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as name:
        root = Path(name)
        for part in ("ropescale", "cli", "evals", "tests", "docs"):
            shutil.copytree(ROOT / part, root / part, ignore=shutil.ignore_patterns("__pycache__", ".hypothesis"))
        for part in ("pyproject.toml", "README.md"):
            shutil.copy(ROOT / part, root / part)
        if mutant is not None:
            mutant.write(root)
        child = os.fork()  # which has the heavy libraries imported already
        if child == 0:
            os._exit(_tried(root, tests))
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        found = root / "killer"
        return found.read_text() if found.exists() else (None if code == 0 else f"exit code {code}")


def _tried(root: Path, tests: str) -> int:
    """Runs the tests below ``root`` in this process, and writes the name of the first that fails beside them."""
    os.chdir(root)
    os.environ["PYTHONPATH"] = str(root)
    sys.path[:] = [str(root), *(path for path in sys.path if not path.startswith(str(ROOT)) or "site-packages" in path)]
    sys.dont_write_bytecode = True
    first = _First()
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        words = ["-x", "-q", "-p", "no:cacheprovider", "-m", "not slow and not engines", "--rootdir", str(root)]
        code = pytest.main([*words, *tests.split()], plugins=[first])
    if first.name is not None:
        (root / "killer").write_text(first.name)
    return int(code)


def chosen(names: list[str], seed: int) -> Iterator[tuple[str, Mutant, str]]:
    """Yields the mutants of each target that the seed picks, with the tests that should notice."""
    for name in names:
        pattern, count, tests = TARGETS[name]
        every = [mutant for path in _files(pattern) for mutant in mutants(path)]
        picked = random.Random(f"{seed} {name}").sample(every, min(count, len(every)))
        yield from ((name, mutant, tests) for mutant in sorted(picked, key=lambda each: (each.path, each.start)))


def _files(pattern: str) -> list[Path]:
    inner = re.fullmatch(r"(.*)\{(.*)\}\.py", pattern)
    globs = [f"{inner[1]}{name}.py" for name in inner[2].split(",")] if inner else [pattern]
    return sorted(path.relative_to(ROOT) for glob in globs for path in ROOT.glob(glob))


def main() -> int:
    """Tries the mutants and prints what killed each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"some of {', '.join(TARGETS)} (default: all)")
    given = parser.parse_args()
    for library in ("torch", "transformers", "numpy"):
        import_module(library)
    names, survived = given.targets or list(TARGETS), 0
    for name in names:
        if (by := killer(None, TARGETS[name][2])) is not None:
            sys.exit(f"{name}: {by} fails on the unchanged sources, so it says nothing about a mutant")
    for name, mutant, tests in chosen(names, given.seed):
        by = killer(mutant, tests)
        survived += by is None
        print(
            f"| {name} | {mutant.path}:{mutant.line} | `{mutant.old}` -> `{mutant.new}` | {by or 'SURVIVED'} |",
            flush=True,
        )
    return min(survived, 1)


if __name__ == "__main__":
    sys.exit(main())
