"""Locks that the system lets go of when their holder dies, so that what a killed command left can be told apart.

They are ``flock``'s, on files that stand in the way of nobody. On network file systems such a lock may be known to one
machine alone, and Windows has none; there nothing that lies about is taken for abandoned.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

_LOCAL = frozenset(
    "ext2 ext3 ext4 xfs btrfs zfs f2fs bcachefs jfs reiserfs overlay tmpfs ramfs vfat exfat ntfs ntfs3 fuseblk".split()
)
"""Linux file systems whose locks every process that can reach a file sees."""


def take(handle: int) -> bool | None:
    """Lock an open file without waiting: True if it is ours now, False if another holds it, None without locks."""
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # this file system has none
        return None
    return True


def are_reliable(folder: Path) -> bool:
    """Tell whether a lock in this folder is seen by every process that can reach it, on whatever machine."""
    if find_spec("fcntl") is None:
        return False
    kind = _kind_of(folder)
    return kind is None or kind in _LOCAL


def _kind_of(folder: Path) -> str | None:
    """The file system's type, from Linux's table of mounts; None where there is no such table."""
    try:
        device = os.stat(folder).st_dev
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as lines:
            mounts = [line.split(" - ") for line in lines]
    except OSError:
        return None
    wanted = f"{os.major(device)}:{os.minor(device)}"
    kinds = [after.split()[0] for before, after in mounts if before.split()[2] == wanted]
    return kinds[-1] if kinds else _longest(folder, mounts)


def _longest(folder: Path, mounts: list[list[str]]) -> str | None:
    """The type of the mount that holds the folder by its path: btrfs and overlays number their devices otherwise."""
    inside = str(folder.resolve()) + "/"
    held = [(before.split()[4], after.split()[0]) for before, after in mounts]
    held = [(place, kind) for place, kind in held if inside.startswith(place.rstrip("/") + "/")]
    return max(held, key=lambda each: len(each[0]))[1] if held else None
