"""Locks that the system releases when their holder dies, so that leftovers of killed commands can be recognised.

They are ``flock`` locks on files of our own. On network file systems only one machine may know of such a lock, and
Windows has none; there no leftover is taken for abandoned.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

_LOCAL = frozenset(
    "ext2 ext3 ext4 xfs btrfs zfs f2fs bcachefs jfs reiserfs overlay tmpfs ramfs vfat exfat ntfs ntfs3 fuseblk "
    "apfs hfs msdos".split()
)
"""File systems whose locks every process that can reach a file sees."""


def take(handle: int) -> bool | None:
    """Locks an open file without waiting: True if it is ours now, False if another holds it, None without locks."""
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
    """Whether every process that can reach this folder, on any machine, sees a lock in it."""
    return find_spec("fcntl") is not None and _kind_of(folder) in _LOCAL


def _kind_of(folder: Path) -> str | None:
    """Returns the type of the file system that holds a folder; None where that cannot be known."""
    try:
        device = os.stat(folder).st_dev
        mounts = _mounts()
    except (OSError, IndexError, subprocess.SubprocessError):
        return None
    wanted = f"{os.major(device)}:{os.minor(device)}"
    kinds = [kind for number, _, kind in mounts if number == wanted]
    return kinds[-1] if kinds else _longest(folder, [(place, kind) for _, place, kind in mounts])


def _mounts() -> list[tuple[str, str, str]]:
    """Returns the device's number, the place and the type of every file system that is mounted."""
    if sys.platform == "linux":
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as lines:
            halves = [line.split(" - ") for line in lines]
        return [(before.split()[2], before.split()[4], after.split()[0]) for before, after, *_ in halves]
    told = subprocess.run(["mount"], capture_output=True, text=True, timeout=5, check=True).stdout
    return [("", *match.groups()) for match in _MOUNT.finditer(told)]


_MOUNT = re.compile(r"^.* on (/.*) \((\w+)[,)]", re.MULTILINE)
"""A line of macOS's `mount`: ``/dev/disk3s5 on /System/Volumes/Data (apfs, local, journaled)``."""


def _longest(folder: Path, mounts: list[tuple[str, str]]) -> str | None:
    """Finds the mount that holds the folder by its path: btrfs and overlays have other device numbers."""
    inside = str(folder.resolve()) + "/"
    held = [(place, kind) for place, kind in mounts if inside.startswith(place.rstrip("/") + "/")]
    return max(held, key=lambda each: len(each[0]))[1] if held else None
