"""Reads the runs of a page, and reports runs that cannot be compared."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TypeVar

from ...errors import DataError
from ...files import local_path
from ..checking import Wrong
from ..results.folder import RESULTS, Results, damaged, read_results
from ..results.losses import read_losses
from ..results.result import Result

T = TypeVar("T")


@dataclass(frozen=True)
class StoredRun:
    """A folder that ``ropescale eval -o``, ``retrieval -o``, ``recommend -o`` or ``search -o`` wrote.

    Attributes:
        folder: its path.
        name: its name on the page: the folder's name, with its parent's if two have the same name.
        results: ``results.json``.
        result: the measurement of perplexity; None for another kind of run.
    """

    folder: Path
    name: str
    results: Results
    result: Result | None

    @property
    def kind(self) -> str:
        """The kind of run."""
        return self.results.get("kind", Result.kind)


def refusing_damage(read: Callable[[StoredRun], T]) -> Callable[[StoredRun], T]:
    """Makes a function refuse runs with missing or contradictory results.

    Raises:
        DataError: raised by the returned function; names the file.
    """

    @wraps(read)
    def reading(run: StoredRun) -> T:
        try:
            return read(run)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            raise damaged(run.folder / RESULTS, Wrong("lacks figures, or contradicts itself")) from None

    return reading


def load(folders: Sequence[str | Path]) -> list[StoredRun]:
    """Reads the runs in these folders, in order.

    Raises:
        DataError: a folder holds no run, or is given twice.
    """
    paths = [local_path(folder) for folder in folders]
    try:
        real = [path.resolve() for path in paths]
    except (OSError, ValueError, RuntimeError) as error:  # a null byte, links in a circle
        raise DataError(f"the runs cannot be read ({error}); give folders that `ropescale eval -o` wrote") from None
    twice = [path for number, path in enumerate(paths) if real[number] in real[:number]]
    if twice:
        raise DataError(f"{twice[0]} is given twice; give each run once")
    runs = []
    for path, name in zip(paths, _names(paths), strict=True):
        results = read_results(path)
        measured = results.get("kind", Result.kind) == Result.kind
        result = Result.of(path, results, read_losses(path, results)) if measured else None
        runs.append(StoredRun(path, name, results, result))
    return runs


def without_losses(runs: Sequence[StoredRun]) -> list[str]:
    """Returns a sentence for each run without per-token losses, which lacks some plots and comparisons."""
    gone = [run for run in runs if run.result and not run.result.identities]
    return [f"{run.folder} has no losses.safetensors, so loss by position and comparisons are left out" for run in gone]


def unpaired(runs: Sequence[StoredRun]) -> list[str]:
    """Returns a sentence for each pair of runs with the same text but different tokens."""
    measured = [(run.name, run.result) for run in runs if run.result]
    return [
        f"{name} and {other} scored the same text with different tokens, so they are not compared token by token; "
        "compare their bits per byte"
        for (name, one), (other, two) in itertools.combinations(measured, 2)
        if one.same_text(two) and not any(one.same_tokens(two, length) for length in one.lengths)
    ]


def _names(paths: Sequence[Path]) -> list[str]:
    """Returns the folders' names, with enough parents to be distinct."""
    parts = [path.resolve().parts for path in paths]
    for depth in range(1, max(map(len, parts), default=1) + 1):
        names = ["/".join(part[-depth:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]
