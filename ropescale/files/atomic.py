"""Writes a file whole or not at all, and removes what a killed writer left.

A file is filled beside its place under a hidden name, ``.NAME.<token>.ropescale``, and takes its name in one step.
Its writer holds a lock on it meanwhile. So the next writer of the same file can tell a leftover of a killed writer from
the part of a running one, and removes it.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import logging
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from . import interrupts, locks, renaming

LOG = logging.getLogger(__name__)

SUFFIX = ".ropescale"

_OLD = "-[0-9a-f]{12}-old"
"""The suffix to a part's name under which the old file lies while it is replaced."""

_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV, errno.EMLINK, errno.EACCES}
"""Errors of file systems without hard links."""


def write(path: Path, content: bytes | str) -> None:
    """Replaces or creates a file in one step. The caller has checked that the old one may go.

    Raises:
        OSError: it cannot be written; the old file is unchanged.
    """
    with part(path) as beside:
        beside.write_bytes(content.encode() if isinstance(content, str) else content)


def fill(path: Path, content: bytes) -> None:
    """Writes and syncs a file in a folder of ours; replaces a link instead of writing through it."""
    path.unlink(missing_ok=True)
    with open(path, "xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def part(path: Path, *, new: bool = False, check: Callable[[Path], None] | None = None) -> Iterator[Path]:
    """Yields an empty file beside ``path`` to fill, which takes its name at the end, or is removed on failure.

    Args:
        new: never replace an existing file, whenever it appeared.
        check: called with the very file that is about to be replaced; raises to keep it.

    Raises:
        FileExistsError: with ``new``, there is something of that name.
        OSError: it cannot be written.
    """
    for left in sweep(path):
        LOG.warning("%s was left by a command that was stopped; remove it once no other is writing here", left)
    handle, beside = -1, path
    try:
        with interrupts.deferred():  # until both are known, nobody could remove the file
            handle, beside = opened(path)
        yield beside
        os.fsync(handle)
        _take_name(handle, beside, path, new, check)
    except BaseException:
        _unlink_own(handle, beside)
        raise
    finally:
        with suppress(OSError):
            os.close(handle)


def opened(path: Path, more: str = "") -> tuple[int, Path]:
    """Makes a file beside ``path`` and locks it; again where a sweeper was quicker than the lock."""
    while True:
        beside = path.with_name(hidden_name(path.name) + more)
        handle = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o666)
        if locks.take(handle) is not False and is_still(handle, beside):
            return handle, beside
        os.close(handle)


def _take_name(handle: int, beside: Path, path: Path, new: bool, check: Callable[[Path], None] | None) -> None:
    if new or (check is not None and not os.path.lexists(path)):
        _name_new(beside, path)
    elif check is None:
        os.replace(beside, path)
    else:
        old = beside.with_name(f"{beside.name}-{_stamp(path)}-old")
        check(path)
        with interrupts.deferred():
            _replace_checked(handle, beside, old, path, check)


def _stamp(path: Path) -> str:
    """Identifies a file in its present state: another file, or the same one after a write, has another stamp."""
    found = os.lstat(path)
    return hashlib.sha256(f"{found.st_ino} {found.st_size} {found.st_mtime_ns}".encode()).hexdigest()[:12]


def _replace_checked(handle: int, beside: Path, old: Path, path: Path, check: Callable[[Path], None]) -> None:
    """Exchanges the two names, and checks the old file again, which nobody can replace then.

    Meanwhile it has a name that is swept only if its stamp shows that it was checked before. The part keeps its own
    name too, whose lock tells others that a writer is running.
    """
    try:
        if not _exchanged(beside, old, path):
            os.replace(beside, path)
            return
        check(old)
        old.unlink()
        beside.unlink()
    except BaseException:
        _put_back(handle, old, path)
        raise


def _exchanged(beside: Path, old: Path, path: Path) -> bool:
    """Exchanges a file and a second name of the part; False where the system cannot, and nothing was done."""
    try:
        os.link(beside, old)
    except OSError as error:
        if error.errno in _NO_LINKS:
            return False
        raise
    if renaming.exchange(old, path):
        return True
    old.unlink()
    return False


def _put_back(handle: int, old: Path, path: Path) -> None:
    """Gives a file its name back if it lost it and the name is free; else logs where the file is."""
    with suppress(OSError):
        if is_still(handle, path):
            renaming.exchange(old, path)
        elif not is_still(handle, old):
            renaming.moved(old, path)
    _unlink_own(handle, old)
    if os.path.lexists(old):
        _name_left(old, path)


def _unlink_own(handle: int, name: Path) -> None:
    """Removes a name of an open file, unless something else has it by now."""
    with suppress(OSError):
        if is_still(handle, name):
            name.unlink()


@cache
def _name_left(old: Path, path: Path) -> None:
    LOG.warning("%s is what was %s; move it to where you want it", old, path)


def _name_new(beside: Path, path: Path) -> None:
    """Gives the part its name unless that is taken. A link fails where a plain rename would replace."""
    if renaming.moved(beside, path):
        return
    try:
        os.link(beside, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        _copy_new(beside, path)
    beside.unlink()


def _copy_new(beside: Path, path: Path) -> None:
    """Creates the file only if it does not exist, and copies, for systems with neither such renames nor hard links."""
    with open(path, "xb") as file, open(beside, "rb") as source:
        try:
            shutil.copyfileobj(source, file)
            file.flush()
            os.fsync(file.fileno())
        except BaseException:
            if is_still(file.fileno(), path):
                path.unlink()
            raise


def sweep(path: Path) -> list[Path]:
    """Removes the parts that killed writers of this file left; returns those that may belong to a running one.

    A file that a killed writer was about to replace is removed if it had been checked, and else put back or named.
    """
    kept = []
    for beside in hidden_beside(path):
        with suppress(OSError):
            if stat.S_ISREG(beside.lstat().st_mode) and not _removed(beside):
                kept.append(beside)
    for old in hidden_beside(path, _OLD):
        with suppress(OSError):
            _settle(old, path)
    return kept if not kept or not locks.are_reliable(path.absolute().parent) else []


def _removed(beside: Path) -> bool:
    """Removes a part that nobody holds; False where a running writer may hold it."""
    with handle_of(beside, os.O_RDWR) as handle:
        if not (locks.are_reliable(beside.parent) and locks.take(handle) and is_still(handle, beside)):
            return False
        for second in beside.parent.glob(f"{glob.escape(beside.name)}-*-old"):  # before its exchange
            _unlink_own(handle, second)
        beside.unlink()
        return True


def _settle(old: Path, path: Path) -> None:
    """Removes, puts back or names a file that a killed writer was about to replace."""
    part, stamp, _ = old.name.rsplit("-", 2)
    if os.path.lexists(old.with_name(part)):
        return
    if not os.path.lexists(path) and renaming.moved(old, path):
        return
    if _stamp(old) == stamp:
        old.unlink()
    else:
        _name_left(old, path)


@contextmanager
def handle_of(path: str | Path, flags: int, folder: int | None = None) -> Iterator[int]:
    """Opens a file or folder for the block; refuses a link."""
    handle = os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), dir_fd=folder)
    try:
        yield handle
    finally:
        os.close(handle)


def is_still(handle: int, path: Path) -> bool:
    """Whether an open file is the one that now has this name."""
    try:
        return os.path.samestat(os.fstat(handle), os.lstat(path))
    except OSError:
        return False


def hidden_name(name: str) -> str:
    """Makes a hidden name for a file that will be called ``name``; a token marks it as ours."""
    token = secrets.token_hex(4)
    return f".{_shortened(name)}.{token}{_check(name, token)}{SUFFIX}"


def hidden_beside(path: Path, more: str = "") -> list[Path]:
    """Returns the files beside ``path`` whose name is one of :func:`hidden_name`, followed by ``more``."""
    pattern = re.compile(rf"\.{re.escape(_shortened(path.name))}\.([0-9a-f]{{8}})([0-9a-f]{{4}}){SUFFIX}{more}")
    try:
        names = os.listdir(path.absolute().parent)
    except OSError:
        return []
    matches = [match for name in sorted(names) if (match := pattern.fullmatch(name))]
    return [path.with_name(match[0]) for match in matches if match[2] == _check(path.name, match[1])]


def _shortened(name: str) -> str:
    """Cuts a name: at most 255 bytes are allowed, and ours adds some."""
    return os.fsdecode(os.fsencode(name)[:200])


def _check(name: str, token: str) -> str:
    return hashlib.sha256(os.fsencode(name) + token.encode()).hexdigest()[:4]
