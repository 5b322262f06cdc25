"""Reads the folders of runs."""

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...errors import DataError
from ...files import local_path
from ...output.formatting import Grid, Page, listed, markdown, names_of
from ..results.folder import LOSSES, RESULTS, Results, read_results, refusing_damage
from ..results.result import Result


@dataclass(frozen=True)
class StoredRun:
    """A folder that ``ropescale eval -o``, ``retrieval -o``, ``recommend -o`` or ``search -o`` wrote.

    Attributes:
        folder: the path of the folder.
        name: the run's name on the page: the folder's name, or with its parents where another run's ends the same.
        results: the content of ``results.json``.
        result: the measurement of perplexity, which a search on a text also has; None for all other kinds of runs.
        sentences: that the run is not whole if it stopped, the conclusions, and on what they rest.
        report: the parts of REPORT.md below these.
    """

    folder: Path
    name: str
    results: Results
    result: Result | None
    sentences: list[str]
    report: Page


def load(folders: Sequence[str | Path]) -> list[StoredRun]:
    """Reads the runs in these folders, in order.

    Raises:
        DataError: a folder does not contain a run, or is given twice.
    """
    paths = [local_path(folder) for folder in folders]
    real = [Path(os.path.realpath(path)) for path in paths]
    twice = [path for number, path in enumerate(paths) if real[number] in real[:number]]
    if twice:
        raise DataError(f"{twice[0]} is given twice; give each run once")
    names = names_of({str(path): str(path) for path in real})
    runs = []
    for path, whole in zip(paths, real):
        results = read_results(path)
        result = Result.of(path, results) if LOSSES in results["files"] else None
        with refusing_damage(path / RESULTS):
            said = [results.get("unfinished"), *results["sentences"], results["rests_on"]]
            report: Page = []
            for part in results.pop("report"):
                report.append(part if isinstance(part, str) else Grid(**part))
            markdown(report)  # raises an error if a row of a table is shorter or longer than its header
        runs.append(StoredRun(path, names[str(whole)], results, result, [*filter(None, said)], report))
    return runs


def measured(runs: Sequence[StoredRun]) -> list[tuple[str, Result]]:
    """Returns the name and the measurement of each run that has one."""
    return [(run.name, run.result) for run in runs if run.result]


def unpaired(runs: Sequence[StoredRun]) -> list[str]:
    """Returns sentences on the runs that did not score the same tokens."""
    known = measured(runs)
    others = [name for name, result in known if not result.same_text(known[0][1])]
    notes = [
        f"{name} and {other} scored the same text with different tokens, so they are not compared token by token; "
        "compare their bits per byte"
        for (name, one), (other, two) in itertools.combinations(known, 2)
        if one.same_text(two) and not one.same_tokens(two)
    ]
    if others:
        notes.append(f"{listed(others)} scored other texts or windows than {known[0][0]}, so they are not compared")
    return notes
