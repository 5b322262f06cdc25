"""Writes a single file that ropescale may have written before, and replaces nothing else."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from ...errors import CheckpointError
from ...files import atomic
from ...files.reading import local_path

Check = Callable[[Path], None]
"""Raises CheckpointError where a file is neither empty nor one of those that it may be replaced by."""


def target(out: str | Path, check: Check) -> Path:
    """Returns where a file goes, once it is certain that nothing of another kind is replaced by it.

    Raises:
        CheckpointError: it is a folder or in none, or something else is there.
    """
    path = local_path(out)
    try:
        path = path.resolve() if path.is_symlink() else path
        if path.is_dir() or not path.absolute().parent.is_dir():
            raise CheckpointError(f"cannot write {out}: it is a folder, or in none; choose another file")
        if os.path.lexists(path):
            check(path)
    except CheckpointError:
        raise
    except (OSError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"cannot write {path}: {getattr(error, 'strerror', None) or error}") from None
    return path


def write(content: bytes, out: str | Path, check: Check) -> Path:
    """Writes a file beside its place and renames it.

    Raises:
        CheckpointError: it cannot be written, or something else is there.
    """
    path = target(out, check)
    try:
        with atomic.part(path, check=check) as beside:
            beside.write_bytes(content)
    except CheckpointError:
        raise
    except OSError as error:
        raise CheckpointError(f"cannot write {path}: {error.strerror or error}") from error
    return path
