"""Temporary folders that a later command removes if their own was killed."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from . import atomic, interrupts, locks

_PREFIX, _LOCK = "ropescale-", ".ropescale-lock"


@contextmanager
def folder(keep: type[BaseException]) -> Iterator[Path]:
    """A folder that is gone afterwards; what killed commands left is removed first.

    Args:
        keep: the error after which it stays, because its message names it.
    """
    _sweep(Path(tempfile.gettempdir()))
    above = Path(tempfile.mkdtemp(prefix=_PREFIX))
    handle = os.open(above / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    locks.take(handle)
    try:
        yield above
    except keep:
        (above / _LOCK).unlink()  # without it nobody takes the folder for abandoned
        raise
    except BaseException:
        _remove(above)
        raise
    else:
        _remove(above)
    finally:
        os.close(handle)


def _remove(above: Path) -> None:
    """The lock goes last: with it a removal that is cut short can be finished."""
    with interrupts.deferred():
        for path in above.iterdir():
            if path.name != _LOCK:
                shutil.rmtree(path, ignore_errors=True)
        shutil.rmtree(above, ignore_errors=True)


def _sweep(place: Path) -> None:
    for lock in place.glob(f"{_PREFIX}*/{_LOCK}"):
        with suppress(OSError):
            handle = os.open(lock, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
            try:
                if locks.are_reliable(place) and locks.take(handle) and atomic.is_still(handle, lock):
                    _remove(lock.parent)
            finally:
                os.close(handle)
