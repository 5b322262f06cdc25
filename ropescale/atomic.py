"""Writing a file whole or not at all, and clearing away what a killed writer left.

A file is filled beside its place under a hidden name, ``.NAME.<token>.ropescale``, and takes its name in one step.
While it is filled its writer holds a lock on it: so the next writer of the same file can tell what a killed one left
from what a living one is writing, and removes it.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from . import interrupts, locks, renaming

LOG = logging.getLogger(__name__)

SUFFIX = ".ropescale"

_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV, errno.EMLINK, errno.EACCES}
"""What file systems without hard links answer."""


def write(path: Path, content: bytes | str) -> None:
    """Replace a file, or make it, in one step. The caller has made sure that what is there may go.

    Raises:
        OSError: it cannot be written; what was there is there still.
    """
    with part(path) as beside:
        beside.write_bytes(content.encode() if isinstance(content, str) else content)


def create(path: Path, content: bytes | str) -> None:
    """Make a file that must not be there yet.

    Raises:
        FileExistsError: there is something of that name.
        OSError: it cannot be written.
    """
    with part(path, new=True) as beside:
        beside.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def part(path: Path, *, new: bool = False, check: Callable[[Path], None] | None = None) -> Iterator[Path]:
    """Give an empty file beside ``path`` to fill, which takes its name at the end and is gone where something fails.

    Args:
        new: never replace what has that name, whenever it appeared.
        check: called with the very file that is about to go; raises if it must not, and then it stays.

    Raises:
        FileExistsError: with ``new``, there is something of that name.
        OSError: it cannot be written.
    """
    for left in sweep(path):
        LOG.warning("%s was left by a command that was stopped; remove it once no other is writing here", left)
    handle, beside = _opened(path)
    try:
        yield beside
        os.fsync(handle)
        _take_name(beside, path, new, check)
    except BaseException:
        with suppress(OSError):
            beside.unlink()
        raise
    finally:
        os.close(handle)


def _opened(path: Path) -> tuple[int, Path]:
    """Open a new part and lock it; again where a sweeper was quicker than the lock."""
    while True:
        beside = path.with_name(hidden_name(path.name))
        handle = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o666)
        if locks.take(handle) is not False and is_still(handle, beside):
            return handle, beside
        os.close(handle)


def _take_name(beside: Path, path: Path, new: bool, check: Callable[[Path], None] | None) -> None:
    if new or (check is not None and not os.path.lexists(path)):
        _name_new(beside, path)
    elif check is None:
        os.replace(beside, path)
    else:
        with interrupts.deferred():
            _replace_checked(beside, path, check)


def _replace_checked(beside: Path, path: Path, check: Callable[[Path], None]) -> None:
    """Exchange the two names, and look at what was there only then: nobody can change it in between."""
    if not renaming.exchange(beside, path):
        check(path)
        os.replace(beside, path)
        return
    try:
        check(beside)
    except BaseException:
        renaming.exchange(beside, path)
        raise
    beside.unlink()


def _name_new(beside: Path, path: Path) -> None:
    """Give the part its name unless something has it. A link fails where a rename would replace."""
    try:
        os.link(beside, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        _copy_new(beside, path)
    beside.unlink()


def _copy_new(beside: Path, path: Path) -> None:
    """Where there are no hard links: make the file only if it is not there, and fill it."""
    with open(path, "xb") as file, open(beside, "rb") as source:
        try:
            while block := source.read(2**20):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
        except BaseException:
            if is_still(file.fileno(), path):
                path.unlink()
            raise


def sweep(path: Path) -> list[Path]:
    """Remove the parts that killed writers of this file left; give those that may be a living one's."""
    kept = []
    for beside in hidden_beside(path):
        with suppress(OSError):
            if stat.S_ISREG(beside.lstat().st_mode) and not _removed(beside):
                kept.append(beside)
    return kept if not kept or not locks.are_reliable(path.absolute().parent) else []


def _removed(beside: Path) -> bool:
    """Remove a part that nobody holds; False where a living writer has it, or that cannot be known."""
    handle = os.open(beside, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
    try:
        if not (locks.are_reliable(beside.parent) and locks.take(handle) and is_still(handle, beside)):
            return False
        beside.unlink()
        return True
    finally:
        os.close(handle)


def is_still(handle: int, path: Path) -> bool:
    """Tell whether an open file is the one that now has this name."""
    try:
        here, there = os.fstat(handle), os.lstat(path)
    except OSError:
        return False
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)


def hidden_name(name: str) -> str:
    """A new name for what will be called ``name``: hidden, and told from everybody else's files by its token."""
    token = secrets.token_hex(4)
    return f".{_shortened(name)}.{token}{_check(name, token)}{SUFFIX}"


def hidden_beside(path: Path, more: str = "") -> list[Path]:
    """What lies beside ``path`` under a name that :func:`hidden_name` gave, followed by ``more``."""
    pattern = re.compile(rf"\.{re.escape(_shortened(path.name))}\.([0-9a-f]{{8}})([0-9a-f]{{4}}){SUFFIX}{more}")
    try:
        names = os.listdir(path.absolute().parent)
    except OSError:
        return []
    matches = [match for name in sorted(names) if (match := pattern.fullmatch(name))]
    return [path.with_name(match[0]) for match in matches if match[2] == _check(path.name, match[1])]


def _shortened(name: str) -> str:
    """A name may have 255 bytes, and ours are longer."""
    return os.fsdecode(os.fsencode(name)[:200])


def _check(name: str, token: str) -> str:
    return hashlib.sha256(os.fsencode(name) + token.encode()).hexdigest()[:4]


def umask() -> int:
    """The process's file mode creation mask, which can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
