"""What killed runs left half written in a run's folder: swept by the next one, while it holds the folder's lock.

Today's parts are known by the lock that their writer held, see :mod:`ropescale.files.atomic`. Those of version 0.1.0
had no lock of their own; they are known by their names, and nobody but the holder of the run's lock could be writing
them.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path

from ...files import atomic
from ..metrics import METRICS
from ..passkey.metrics import METRICS as ASKED
from .formats import ARRAY

RESULTS = "results.json"

WRITTEN: dict[str, Sequence[str]] = {
    "perplexity": ("results.csv", "REPORT.md", *(m.picture.file for m in METRICS if m.picture)),
    "retrieval": ("results.csv", "REPORT.md", "answers.csv", *(m.picture.file for m in ASKED if m.picture)),
}
"""By the kind of run, the files beside ``results.json``."""

_OLD = re.compile(
    r"\.part-(results\.json|results\.csv|answers\.csv|REPORT\.md|[0-9]+-(facts|run)\.json)"
    r"|\.(ppl_vs_length|loss_by_position|retrieval)\.[0-9]+\.png"
)


def sweep_run(folder: Path) -> None:
    """Sweeps a run's folder, but not what is below it.

    Raises:
        OSError: something cannot be removed.
    """
    for name in {RESULTS, *chain(*WRITTEN.values())}:
        atomic.sweep(folder / name)
    _sweep_old(folder)
    _sweep_old_arrays(folder / ".part-nll")


def sweep_records(folder: Path) -> None:
    """Sweeps ``resume/``, or the folder of a pass in it.

    Raises:
        OSError: something cannot be removed.
    """
    for name in ("facts.json", "run.json"):
        atomic.sweep(folder / name)
    _sweep_old(folder)


def is_regular(path: Path) -> bool:
    """Whether this is a file, and no link, pipe or device."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def is_folder(path: Path) -> bool:
    """Whether this is a folder, and no link to one."""
    return path.is_dir() and not path.is_symlink()


def _sweep_old(folder: Path) -> None:
    for entry in os.scandir(folder):
        if _OLD.fullmatch(entry.name) and is_regular(Path(entry)):
            os.unlink(entry)


def _sweep_old_arrays(folder: Path) -> None:
    """Removes half-written files from ``nll/``, known by their names, and the folders that are then empty."""
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
