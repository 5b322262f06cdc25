"""Tells the files that ropescale wrote from all others: only these are ever replaced.

The record of a patched checkpoint lists them. A weight file is recognised without reading it: a hard link by its inode,
a symbolic link by its target, a copy by its size and time. Any other file is recognised by its SHA-256.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from .reading import sha256, sha256_of

Entry = Mapping[str, object]
"""The record's entry for a written file, see :func:`entry_of`."""


def entry_of(path: Path, how: str | None) -> Entry:
    """Describes a file that was just written, so that :func:`foreign` knows it again.

    Args:
        how: "hard", "symlink" or "copy" for weights, whose content is not read; None for any other file.
    """
    if how is None:
        return {"sha256": sha256_of(path)}
    if how == "symlink":  # not the target itself: it holds the path of somebody's machine
        return {"how": how, "sha256": sha256(os.fsencode(os.readlink(path)))}
    there = path.lstat()
    if how == "hard":
        return {"how": how, "inode": there.st_ino}
    return {"how": how, "size": there.st_size, "mtime_ns": there.st_mtime_ns}


def foreign(folder: Path, files: Mapping[str, Entry], known: Iterable[str] = ()) -> Iterator[str]:
    """Yields each file in a folder that is not as it was written, with the reason.

    Args:
        folder: a real folder; links in it are not followed.
        files: what :func:`entry_of` said of each file, by its name relative to the folder.
        known: further files that are ours whatever they hold.
    """
    folders = {str(above) for name in (*files, *known) for above in Path(name).parents}
    # how many names of each inode lie in the folder itself
    within = Counter(entry.inode() for _, entry in _walk(folder, "") if entry.is_file(follow_symlinks=False))
    for name, entry in _walk(folder, ""):
        if entry.is_dir(follow_symlinks=False):
            if name not in folders:
                yield f"{name}/ was not written by ropescale"
            elif not os.access(entry.path, os.W_OK | os.X_OK):
                yield f"{name}/ may not be changed"
        elif name in files:
            why = _difference(folder / name, files[name], within)
            if why:
                yield f"{name} {why}"
        elif name not in known or not entry.is_file(follow_symlinks=False):
            yield f"{name} was not written by ropescale"


def _walk(folder: Path, below: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yields every file and folder below a folder, each folder before its content."""
    for entry in sorted(os.scandir(folder / below), key=lambda each: each.name):
        name = f"{below}/{entry.name}" if below else entry.name
        yield name, entry
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(folder, name)


def _difference(path: Path, entry: Entry, within: Mapping[int, int]) -> str | None:
    """Says what tells a file from the one that was written; None where nothing does."""
    there, how = path.lstat(), entry.get("how")
    if how == "symlink":
        same = stat.S_ISLNK(there.st_mode) and sha256(os.fsencode(os.readlink(path))) == entry.get("sha256")
        return None if same else "is not the link that ropescale made"
    if not stat.S_ISREG(there.st_mode):
        return "is not the file that ropescale wrote"
    if how == "hard":
        if there.st_ino != entry.get("inode"):
            return "is not the link that ropescale made"
        return None if there.st_nlink > within[there.st_ino] else "is the only copy left of these weights"
    if how == "copy":
        same = (there.st_size, there.st_mtime_ns) == (entry.get("size"), entry.get("mtime_ns"))
    else:
        same = sha256_of(path) == entry.get("sha256")
    return None if same else "was changed since ropescale wrote it"


def remove(folder: Path, files: Iterable[str], last: Iterable[str]) -> bool:
    """Removes these files of a folder and then the folder; False where it holds something else, which stays.

    Args:
        files: names relative to the folder.
        last: the files that list the others, so that an interrupted removal can be finished.
    """
    names = [*files, *last]
    for name in names:
        (folder / name).unlink(missing_ok=True)
    above = {folder / parent for name in names for parent in Path(name).parents}
    for each in sorted(above, key=lambda path: len(path.parts), reverse=True):
        with suppress(OSError):
            each.rmdir()
    return not os.path.lexists(folder)
