"""Counts the files and functions of ropescale that a command enters: ``python tests/tools/tracing.py patch MODEL ...``.

The files are listed with their functions; a function that is called while a module is imported counts, too. ``patch``
is to enter at most 38 files, and ``eval`` at most 65, or 71 with ``-o``.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FrameType

import ropescale
from ropescale import cli, evals
from ropescale.cli.main import main

_HOMES = tuple(str(Path(str(package.__file__)).resolve().parent) + os.sep for package in (ropescale, cli, evals))


def is_ours(code: CodeType) -> bool:
    """Returns whether code lies in a file of ropescale."""
    return os.path.realpath(code.co_filename).startswith(_HOMES)


def entered(act: Callable[[], object]) -> dict[str, set[str]]:
    """Runs an act, and returns the functions of ropescale that it enters in any thread, by file."""
    seen: set[CodeType] = set()

    def look(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            seen.add(frame.f_code)

    before = sys.getprofile()
    threading.setprofile(look)
    sys.setprofile(look)
    try:
        act()
    finally:
        sys.setprofile(before)
        threading.setprofile(None)
    found: dict[str, set[str]] = {}
    for code in list(seen):  # other threads may still add to it
        is_function = code.co_flags & CO_OPTIMIZED and not code.co_name.startswith("<")  # no class, no comprehension
        if is_function and is_ours(code):
            found.setdefault(os.path.realpath(code.co_filename), set()).add(code.co_qualname)
    return found


if __name__ == "__main__":
    files = entered(lambda: main(sys.argv[1:]))
    for name in sorted(files):
        print(f"{os.path.relpath(name)}: {', '.join(sorted(files[name]))}")
    print(f"{len(files)} files, {sum(map(len, files.values()))} functions")
