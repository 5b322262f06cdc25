"""Decides what ``force`` may replace: only a folder in which every file is as ropescale wrote it.

The record of a patched checkpoint lists its files. A weight file is recognised without reading it: a hard link by its
inode, a symbolic link by its target, a copy by its size and time. Any other file is recognised by its SHA-256.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from ..errors import CheckpointError
from ..files import sha256, sha256_of, sweep_leftovers, translated
from ..record import NAME as RECORD
from ..record import Entry, Listing, files_in
from .backups import BACKUP


def entry_of(path: Path, how: str | None) -> Entry:
    """Describes a file that was just written, so that :func:`why_not_ours` recognises it.

    Args:
        how: "hard", "symlink" or "copy" for weights, whose content is not read; None for any other file.
    """
    if how is None:
        return {"sha256": sha256_of(path)}
    if how == "symlink":  # not the target itself: it contains a path of the user's machine
        return {"how": how, "sha256": sha256(os.fsencode(os.readlink(path)))}
    status = path.lstat()
    if how == "hard":
        return {"how": how, "inode": status.st_ino}
    return {"how": how, "size": status.st_size, "mtime_ns": status.st_mtime_ns}


def why_not_ours(folder: Path) -> str | None:
    """Returns why ``force`` may not replace a folder, with a file's name; None if ropescale wrote all of it."""
    if folder.is_symlink() or not folder.is_dir():
        kind = "a symbolic link" if folder.is_symlink() else "a file"
        return f"{folder} was not written by ropescale ({kind}), so force leaves it; choose another folder"
    if not os.path.lexists(folder / RECORD):
        return f"{folder} was not written by ropescale (no {RECORD}), so force leaves it; remove it yourself"
    if os.path.lexists(folder / BACKUP):
        return (
            f"{folder} was patched in place and contains {BACKUP}, so force leaves it; choose another folder, or undo "
            f"the patch first: ropescale restore {folder}"
        )
    files = files_in(folder)
    if files is None:
        return (
            f"{folder / RECORD} does not list the files that ropescale wrote (it is damaged), so force cannot "
            f"distinguish them from yours; check {folder} and remove it yourself"
        )
    foreign = next(_foreign_files(folder, files), None)
    if foreign and files_in(folder) != files:  # another command has replaced the folder meanwhile
        return why_not_ours(folder)
    return foreign and f"{folder / foreign}, so force leaves {folder}; move that away, or choose another folder"


def _foreign_files(folder: Path, files: Listing) -> Iterator[str]:
    """Yields every file in a folder that differs from the written one, with the reason."""
    folders = {str(parent) for name in files for parent in Path(name).parents}
    paths = sorted(folder.rglob("*"))
    within = Counter(path.lstat().st_ino for path in paths)  # the number of names of each inode in the folder itself
    for path in paths:
        name = path.relative_to(folder).as_posix()
        if path.is_dir() and not path.is_symlink():
            if name not in folders:
                yield f"{name}/ was not written by ropescale"
        elif name in files:
            if why := _difference(path, files[name], within):
                yield f"{name} {why}"
        elif name != RECORD or path.is_symlink():
            yield f"{name} was not written by ropescale"


def _difference(path: Path, entry: Entry, within: Mapping[int, int]) -> str | None:
    """Returns how a file differs from the written one; None if it does not."""
    status, how = path.lstat(), entry.get("how")
    if not (stat.S_ISLNK if how == "symlink" else stat.S_ISREG)(status.st_mode):
        return "is not the file that ropescale wrote"
    if entry_of(path, how if isinstance(how, str) else None) != entry:
        return "was changed since ropescale wrote it"
    is_last = how == "hard" and status.st_nlink <= within[status.st_ino]
    return "is the only copy left of these weights" if is_last else None


def remove_ours(folder: Path) -> bool:
    """Removes ropescale's files and the folder; returns False if other files remain."""
    names = [*(files_in(folder) or ()), RECORD]  # the record last, so that an interrupted removal can be continued
    for name in names:
        (folder / name).unlink(missing_ok=True)
    above = {folder / parent for name in names for parent in Path(name).parents}
    for directory in sorted(above, key=lambda path: len(path.parts), reverse=True):
        with suppress(OSError):
            directory.rmdir()
    return not os.path.lexists(folder)


def left_aside(folder: Path) -> Path | None:
    """Returns ``NAME~`` if a killed ``force`` left the earlier result there."""
    aside = Path(f"{folder}~")
    return aside if os.path.lexists(aside / RECORD) else None


def is_empty(folder: Path) -> bool:
    return folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir())


def check_target(source: Path | None, out: str | Path, force: bool = False) -> Path:
    """Returns the folder to write, after checking that this overwrites nothing; a model in memory may have no source.

    Raises:
        CheckpointError: it exists, is or contains the source or its weights, or its parent is a file.
    """
    if not str(out):
        raise CheckpointError("the output's name is empty; name the folder to write")
    try:
        target = Path(out).expanduser()
        target = target.resolve() if target.name in ("", "..") else target  # `.` has no name
        here, there = source and source.resolve(), target.resolve()
    except (RuntimeError, ValueError) as error:  # an unknown home, or a null byte
        raise CheckpointError(f"{str(out)!r} cannot be written: {error}; choose another folder") from None
    if here == there:
        raise CheckpointError(f"{target} is the source itself; choose another folder, or patch in place", "in_place")
    if here and (here in there.parents or there in here.parents):
        raise CheckpointError(f"{target} and the source {source} overlap; choose another folder")
    nearest = next(parent for parent in target.absolute().parents if os.path.lexists(parent))
    if not nearest.is_dir():
        raise CheckpointError(f"{target} cannot be written: {nearest} is not a folder; choose another place")
    if not os.path.lexists(target):
        return target
    sweep_leftovers(target)  # the lock of a command that was killed after it had renamed the folder
    if not force:
        raise CheckpointError(f"{target} exists already; choose another folder, or replace it with force", "force")
    with translated(target, "read"):
        why = None if is_empty(target) else why_not_ours(target)
    if why is not None:
        raise CheckpointError(why, "force")
    if there in (Path.cwd(), *Path.cwd().parents):
        raise CheckpointError(f"{target} contains the working directory; choose another folder, or leave it first")
    for path in source.rglob("*") if source else ():
        real = Path(os.path.realpath(path))
        if path.is_symlink() and there in (real, *real.parents):
            raise CheckpointError(
                f"{target} contains what {path} links to, so replacing it would destroy that; choose another folder"
            )
    return target
