"""Writes a single file, and replaces only a file that ropescale wrote."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from ..errors import CheckpointError
from ..files import atomic_path, local_path, set_aside

Check = Callable[[Path], None]
"""Raises CheckpointError for a file that may not be replaced."""


def target(out: str | Path, check: Check) -> Path:
    """Returns the path of a file, after checking that it would replace no file of another kind.

    Raises:
        CheckpointError: it is a folder, its folder does not exist, or ``check`` refuses the file there.
    """
    path = local_path(out)
    try:
        path = path.resolve() if path.is_symlink() else path
        if path.is_dir() or not path.absolute().parent.is_dir():
            raise CheckpointError(
                f"cannot write {out}: it is a folder, or its folder does not exist; choose another file"
            )
        if os.path.lexists(path):
            check(path)
    except CheckpointError:
        raise
    except (OSError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"cannot write {path}: {getattr(error, 'strerror', None) or error}") from None
    return path


def write(content: bytes, out: str | Path, check: Check) -> Path:
    """Writes a file under another name and renames it.

    Raises:
        CheckpointError: it cannot be written, or ``check`` refuses the file there.
    """
    path = target(out, check)
    try:
        with atomic_path(path, check=check) as beside:
            beside.write_bytes(content)
    except CheckpointError:
        raise
    except OSError as error:
        raise CheckpointError(f"cannot write {path}: {error.strerror or error}") from error
    return path


def move_aside(path: Path, why: str) -> Path:
    """Renames a file to ``NAME~``, or ``NAME~2`` and so on, and says so on stderr; nothing is overwritten.

    Args:
        why: what is wrong with it, as the end of a sentence about it.
    """
    free = set_aside(path)
    print(f"note: {path} {why}; it is now called {free.name}", file=sys.stderr)
    return free
