"""Temporary folders that a later command removes if their own was killed."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from . import atomic, interrupts, locks

_PREFIX, _LOCK = "ropescale-", ".ropescale-lock"


@contextmanager
def folder(keep: type[BaseException]) -> Iterator[Path]:
    """Makes a folder that is gone afterwards; what killed commands left is removed first.

    Args:
        keep: the error after which it stays, because its message names it.
    """
    _sweep(Path(tempfile.gettempdir()))
    with ExitStack() as stack:
        with interrupts.deferred():
            handle, above = _opened()
            stack.callback(os.close, handle)
            removing = stack.enter_context(ExitStack())
            removing.callback(_remove, above)
        try:
            yield above
        except keep:
            (above / _LOCK).unlink()  # without it nobody takes the folder for abandoned
            removing.pop_all()
            raise


def _opened() -> tuple[int, Path]:
    """Makes a folder and locks it; again where a sweeper was quicker than the lock."""
    while True:
        above = Path(tempfile.mkdtemp(prefix=_PREFIX))
        handle = os.open(above / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        if locks.take(handle) is not False and atomic.is_still(handle, above / _LOCK):
            return handle, above
        os.close(handle)


def _remove(above: Path) -> None:
    """Removes a folder, its lock last: with it a removal that is cut short can be finished."""
    with interrupts.deferred():
        for path in above.iterdir():
            if path.name != _LOCK:
                shutil.rmtree(path, ignore_errors=True)
        shutil.rmtree(above, ignore_errors=True)


def _sweep(place: Path) -> None:
    """Removes what killed commands of the same user left."""
    if shutil.rmtree.avoids_symlink_attacks and locks.are_reliable(place):
        for above in place.glob(f"{_PREFIX}*"):
            with suppress(OSError), atomic.handle_of(above, os.O_RDONLY | os.O_DIRECTORY) as folder:
                _remove_abandoned(above, folder)


def _remove_abandoned(above: Path, folder: int) -> None:
    """Removes a folder that is ours and that nobody holds.

    Works on its handle: in a shared place anybody may make a folder of such a name, and put a link in its place.
    """
    if os.fstat(folder).st_uid != os.geteuid():
        return
    with atomic.handle_of(_LOCK, os.O_RDWR, folder) as lock:
        if locks.take(lock) and _is_still_in(folder, lock) and atomic.is_still(folder, above):
            with interrupts.deferred():
                _empty(folder)
                os.rmdir(above)  # which removes no link


def _empty(folder: int) -> None:
    """Empties a folder, the lock last, as in :func:`_remove`."""
    for name in os.listdir(folder):
        if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            shutil.rmtree(name, ignore_errors=True, dir_fd=folder)
        elif name != _LOCK:
            os.unlink(name, dir_fd=folder)
    os.unlink(_LOCK, dir_fd=folder)


def _is_still_in(folder: int, lock: int) -> bool:
    """Whether the lock is there: a command that keeps its folder removes it."""
    try:
        return os.path.samestat(os.fstat(lock), os.stat(_LOCK, dir_fd=folder, follow_symlinks=False))
    except OSError:
        return False
