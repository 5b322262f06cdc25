"""Removes half-written files of killed runs from a run's folder. The next run does so while it holds the folder's lock.

Current parts are recognised by their writer's lock, see :mod:`ropescale.files`. Parts from before 0.1.0 had no
lock and are recognised by their names; only the holder of the run's lock could be writing them.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path

from ...files import sweep_leftovers
from .formats import ARRAY, METRICS_OF

RESULTS = "results.json"

_TABLES = {
    "recommendation": ["finalists.csv"],
    "reproduction": ["claims.csv"],
    "retrieval": ["answers.csv"],
    "search": ["history.csv"],
}
WRITTEN: dict[str, Sequence[str]] = {
    kind: ["results.csv", "REPORT.md", *_TABLES.get(kind, []), *(m.picture.file for m in metrics if m.picture)]
    for kind, metrics in METRICS_OF.items()
}
"""The files beside ``results.json``, by kind of run."""

_OLD = re.compile(
    r"\.part-(results\.json|results\.csv|answers\.csv|REPORT\.md|[0-9]+-(facts|run)\.json)"
    r"|\.(ppl_vs_length|loss_by_position|retrieval)\.[0-9]+\.png"
)


@contextmanager
def none_in(folders: Sequence[Path]) -> Iterator[None]:
    """Removes folders again where what is inside fails and has kept nothing in them but its lock; inner ones first."""
    try:
        yield
    except BaseException:
        for folder in folders:
            with suppress(OSError):
                if set(os.listdir(folder)) <= _LOCKS:
                    for name in os.listdir(folder):
                        (folder / name).unlink()
                    folder.rmdir()
        raise


_LOCKS = {"lock", "holder"}


def sweep_run(folder: Path) -> None:
    """Removes half-written files from a run's folder, but not from the folders below it.

    Raises:
        OSError: something cannot be removed.
    """
    for name in {RESULTS, *chain(*WRITTEN.values())}:
        sweep_leftovers(folder / name)
    _sweep_old(folder)
    _sweep_old_arrays(folder / ".part-nll")


def sweep_records(folder: Path) -> None:
    """Removes half-written records from ``resume/``, or from the folder of a pass in it.

    Raises:
        OSError: something cannot be removed.
    """
    for name in ("facts.json", "run.json"):
        sweep_leftovers(folder / name)
    _sweep_old(folder)


def is_regular(path: Path) -> bool:
    """Whether this is a regular file: no link, pipe or device."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def is_folder(path: Path) -> bool:
    """Whether this is a folder and not a link to one."""
    return path.is_dir() and not path.is_symlink()


def _sweep_old(folder: Path) -> None:
    for entry in os.scandir(folder):
        if _OLD.fullmatch(entry.name) and is_regular(Path(entry)):
            os.unlink(entry)


def _sweep_old_arrays(folder: Path) -> None:
    """Removes half-written losses from before version 0.1.0, and then the folders that are empty."""
    if not is_folder(folder):
        return
    for below, folders, names in os.walk(folder, topdown=False):
        for path in (Path(below, name) for name in names):
            name = path.relative_to(folder).as_posix()
            if (name == "index.json" or ARRAY.fullmatch(name)) and is_regular(path):
                path.unlink()
        for name in folders:
            with suppress(OSError):
                Path(below, name).rmdir()
    with suppress(OSError):
        folder.rmdir()
