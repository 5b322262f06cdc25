"""Writing a file whole or not at all, and clearing away what a killed writer left.

A file is filled beside its place under a hidden name, ``.NAME.<token>.ropescale``, and takes its name in one step.
While it is filled its writer holds a lock on it: so the next writer of the same file can tell what a killed one left
from what a living one is writing, and removes it.
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
"""What follows a part's name where a file lies while it is replaced."""

_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV, errno.EMLINK, errno.EACCES}
"""What file systems without hard links answer."""


def write(path: Path, content: bytes | str) -> None:
    """Replaces a file, or makes it, in one step. The caller has made sure that what is there may go.

    Raises:
        OSError: it cannot be written; what was there is there still.
    """
    with part(path) as beside:
        beside.write_bytes(content.encode() if isinstance(content, str) else content)


def fill(path: Path, content: bytes) -> None:
    """Writes a file in a folder of our own, synced; what has its name is replaced, not written through."""
    path.unlink(missing_ok=True)
    with open(path, "xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def part(path: Path, *, new: bool = False, check: Callable[[Path], None] | None = None) -> Iterator[Path]:
    """Gives an empty file beside ``path`` to fill, which takes its name at the end and is gone where something fails.

    Args:
        new: never replace what has that name, whenever it appeared.
        check: called with the very file that is about to go; raises if it must not, and then it stays.

    Raises:
        FileExistsError: with ``new``, there is something of that name.
        OSError: it cannot be written.
    """
    for left in sweep(path):
        LOG.warning("%s was left by a command that was stopped; remove it once no other is writing here", left)
    handle, beside = opened(path)
    try:
        yield beside
        os.fsync(handle)
        _take_name(handle, beside, path, new, check)
    except BaseException:
        _unlink_own(handle, beside)
        raise
    finally:
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
    """Identifies a file as it is: another one, or the same one once it is written into, has another stamp."""
    found = os.lstat(path)
    return hashlib.sha256(f"{found.st_ino} {found.st_size} {found.st_mtime_ns}".encode()).hexdigest()[:12]


def _replace_checked(handle: int, beside: Path, old: Path, path: Path, check: Callable[[Path], None]) -> None:
    """Exchanges the two names, and looks again at what was there: nobody can replace it then.

    Meanwhile it lies under a name that nobody sweeps unless its stamp says that it was looked at before. The part keeps
    its own name too, by whose lock others see that somebody is at work.
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
    """Lets a file have its name again, unless it never lost it or another has it; then says where it is."""
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
    """Gives the part its name unless something has it. A link fails where a plain rename would replace."""
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
    """Where there are neither such renames nor hard links: make the file only if it is not there, and fill it."""
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
    """Removes the parts that killed writers of this file left; returns those that may be a living one's.

    What a killed one was about to replace is removed if it had been looked at, and else put back or named.
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
    """Removes a part that nobody holds; False where a living writer has it, or that cannot be known."""
    handle = os.open(beside, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
    try:
        if not (locks.are_reliable(beside.parent) and locks.take(handle) and is_still(handle, beside)):
            return False
        for second in beside.parent.glob(f"{glob.escape(beside.name)}-*-old"):  # before its exchange
            _unlink_own(handle, second)
        beside.unlink()
        return True
    finally:
        os.close(handle)


def _settle(old: Path, path: Path) -> None:
    """Removes, puts back or names what a killed writer was about to replace."""
    part, stamp, _ = old.name.rsplit("-", 2)
    if os.path.lexists(old.with_name(part)):
        return
    if not os.path.lexists(path) and renaming.moved(old, path):
        return
    if _stamp(old) == stamp:
        old.unlink()
    else:
        _name_left(old, path)


def is_still(handle: int, path: Path) -> bool:
    """Whether an open file is the one that now has this name."""
    try:
        return os.path.samestat(os.fstat(handle), os.lstat(path))
    except OSError:
        return False


def hidden_name(name: str) -> str:
    """A new name for what will be called ``name``: hidden, and told from everybody else's files by its token."""
    token = secrets.token_hex(4)
    return f".{_shortened(name)}.{token}{_check(name, token)}{SUFFIX}"


def hidden_beside(path: Path, more: str = "") -> list[Path]:
    """Returns what lies beside ``path`` under a name that :func:`hidden_name` gave, followed by ``more``."""
    pattern = re.compile(rf"\.{re.escape(_shortened(path.name))}\.([0-9a-f]{{8}})([0-9a-f]{{4}}){SUFFIX}{more}")
    try:
        names = os.listdir(path.absolute().parent)
    except OSError:
        return []
    matches = [match for name in sorted(names) if (match := pattern.fullmatch(name))]
    return [path.with_name(match[0]) for match in matches if match[2] == _check(path.name, match[1])]


def _shortened(name: str) -> str:
    """Cuts a name, of which 255 bytes are allowed, and ours are longer."""
    return os.fsdecode(os.fsencode(name)[:200])


def _check(name: str, token: str) -> str:
    return hashlib.sha256(os.fsencode(name) + token.encode()).hexdigest()[:4]


def umask() -> int:
    """Returns the process's file mode creation mask, which can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
