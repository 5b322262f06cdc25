"""Removes half-written files of killed runs from a run's folder. The next run does so while it holds the folder's lock.

They are recognised by their writer's lock, see :mod:`ropescale.files.atomic`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path

from ...files import atomic
from .formats import METRICS_OF

RESULTS = "results.json"

_TABLES = {
    "recommendation": ["finalists.csv"],
    "retrieval": ["answers.csv"],
    "search": ["history.csv"],
}
WRITTEN: dict[str, Sequence[str]] = {
    kind: ["results.csv", "REPORT.md", *_TABLES.get(kind, []), *(m.picture.file for m in metrics if m.picture)]
    for kind, metrics in METRICS_OF.items()
}
"""The files beside ``results.json``, by kind of run."""


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
        atomic.sweep(folder / name)


def sweep_records(folder: Path) -> None:
    """Removes half-written records from ``resume/``, or from the folder of a pass in it.

    Raises:
        OSError: something cannot be removed.
    """
    for name in ("facts.json", "run.json"):
        atomic.sweep(folder / name)


def is_regular(path: Path) -> bool:
    """Whether this is a regular file: no link, pipe or device."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def is_folder(path: Path) -> bool:
    """Whether this is a folder and not a link to one."""
    return path.is_dir() and not path.is_symlink()
