"""The two renames that Python lacks: one that never replaces, and one that exchanges two names in one step."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

_CANNOT = {errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP}
"""Errors of systems and file systems that do not know the flag."""

_LINUX_NOREPLACE, _LINUX_EXCHANGE = 1, 2  # <linux/fs.h>
_MACOS_SWAP, _MACOS_EXCL = 2, 4  # <sys/stdio.h>


def rename_new(source: Path, target: Path) -> None:
    """Gives a folder a name that nothing has.

    Where the system cannot promise it, a plain rename: that fails by itself on everything but an empty folder.

    Raises:
        FileExistsError: there is something of that name.
        OSError: it cannot be renamed.
    """
    if moved(source, target):
        return
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
    os.rename(source, target)


def moved(source: Path, target: Path) -> bool:
    """Gives something a name that nothing has, in one step; False where the system cannot, and nothing was done.

    Raises:
        FileExistsError: there is something of that name.
        OSError: it cannot be renamed.
    """
    return _renamed(source, target, _LINUX_NOREPLACE, _MACOS_EXCL)


def exchange(one: Path, other: Path) -> bool:
    """Exchanges two names in one step; False where the system cannot, and nothing was done.

    Raises:
        OSError: one of them is not there, or may not be renamed.
    """
    return _renamed(one, other, _LINUX_EXCHANGE, _MACOS_SWAP)


def _renamed(source: Path, target: Path, linux: int, macos: int) -> bool:
    """Calls the system's rename with a flag; False where there is none."""
    if sys.platform not in ("linux", "darwin"):
        return False
    import ctypes

    sys.audit("os.rename", str(source), str(target), -1, -1)
    libc = ctypes.CDLL(None, use_errno=True)
    names = os.fsencode(source), os.fsencode(target)
    try:
        if sys.platform == "linux":
            here = -100  # AT_FDCWD
            failed = libc.renameat2(here, names[0], here, names[1], linux)
        else:
            failed = libc.renamex_np(*names, macos)
    except AttributeError:  # an older libc
        return False
    if not failed:
        return True
    number = ctypes.get_errno()
    if number in _CANNOT:
        return False
    raise OSError(number, os.strerror(number), str(source), None, str(target))
