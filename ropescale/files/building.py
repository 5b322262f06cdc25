"""Builds a folder beside its place, whole or not at all, and removes what a killed command left.

A folder ``OUT`` is built as ``.OUT.<token>.ropescale``. A journal beside it, ``.OUT.<token>.ropescale-journal``, is
made first, removed last and locked as long as its writer runs. So a journal without a lock shows that its folders were
left by a killed command. The record of a checkpoint is written last and removed last: a folder without one was being
built, and one with a record says what in it is ours.

An ``OUT`` that is to be replaced is exchanged for the new folder in one step. Where the system cannot do that, it is
set aside as ``.OUT.<token>.ropescale-old``, which the journal says beforehand; a later command puts it back.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import CheckpointError
from . import atomic, interrupts, locks, renaming

LOG = logging.getLogger(__name__)

JOURNAL, OLD = "-journal", "-old"

WhyNot = Callable[[Path], "str | None"]
"""Says why a folder that was complete once must stay, which its record tells; None where all in it is ours."""

Remove = Callable[[Path], bool]
"""Removes what is ours in such a folder, and the folder; False where something else is in it, which stays."""


class Building:
    """A folder that is being made.

    Attributes:
        path: the hidden folder in which it is built.
        target: its final path.
    """

    def __init__(self, target: Path) -> None:
        self.target = target
        self._made: tuple[int, int] | None = None
        self._handle, self._journal = atomic.opened(target, JOURNAL)
        self.path, self._old = _named(self._journal, ""), _named(self._journal, OLD)
        try:
            self._note("building", self.path)
            self.path.mkdir()
            self._made = _identity(self.path)
        except BaseException:
            self.discard()
            raise

    def place(self, in_empty: bool = False) -> None:
        """Gives it its name, which must be free, or that of an empty folder.

        Raises:
            CheckpointError: something of that name has appeared, or the folder is no longer empty.
        """
        rename = os.rename if in_empty else renaming.rename_new
        with interrupts.deferred():
            try:
                rename(self.path, self.target)
            except OSError as error:
                if not os.path.lexists(self.target):
                    raise
                why = "exists already: it appeared meanwhile; choose another folder, or remove it"
                why = "is not empty any more; choose another folder" if in_empty else why
                raise CheckpointError(f"{self.target} {why}") from error
            self._close()

    def replace(self, why_not: WhyNot, remove: Remove) -> None:
        """Takes the place of an earlier result, which is removed; whole, whatever interrupts it.

        Raises:
            CheckpointError: the earlier result holds something that is not ours; it is where it was.
            OSError: it cannot be looked into; it is where it was.
        """
        with interrupts.deferred():
            self._note("complete", self.path)
            earlier = self.path if renaming.exchange(self.path, self.target) else self._set_aside()
            try:
                foreign = why_not(earlier)
                if foreign is not None:
                    raise CheckpointError(foreign.replace(str(earlier), str(self.target)), "force")
            except BaseException:
                self._take_back(earlier)
                raise
            self._close(keep=not _removed(earlier, remove))

    def _set_aside(self) -> Path:
        """Exchanges by two renames; the journal tells a later command if this one is killed between them."""
        self._note("old", self._old)
        os.rename(self.target, self._old)
        try:
            renaming.rename_new(self.path, self.target)
        except BaseException:
            if os.path.lexists(self.target):
                raise CheckpointError(
                    f"{self.target} appeared while it was replaced; the earlier one is {self._old}; move one away"
                ) from None
            os.rename(self._old, self.target)
            raise
        return self._old

    def _take_back(self, earlier: Path) -> None:
        if earlier == self.path:
            renaming.exchange(earlier, self.target)
        else:
            os.rename(self.target, self.path)
            renaming.rename_new(earlier, self.target)

    def discard(self) -> None:
        """Removes it, and its journal if nothing is left for a later command to clear up."""
        with interrupts.deferred():
            if self._made is not None and _identity(self.path) == self._made:  # not what it was exchanged for
                shutil.rmtree(self.path, ignore_errors=True)
            self._close(keep=os.path.lexists(self.path) or os.path.lexists(self._old))

    def _note(self, what: str, path: Path) -> None:
        line = json.dumps({what: path.name}).encode() + b"\n"
        if os.write(self._handle, line) != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._journal))
        if what != "building":  # what is being built may be lost in a power cut, what is set aside may not
            os.fsync(self._handle)

    def _close(self, keep: bool = False) -> None:
        """Closes the journal, and removes it unless a later command needs it."""
        with suppress(OSError):
            if not keep:
                self._journal.unlink()
        with suppress(OSError):
            os.close(self._handle)


@contextmanager
def building(target: Path) -> Iterator[Building]:
    """Makes a hidden folder next to ``target``; gone afterwards, unless it was given its place."""
    if target.name in ("", ".."):
        raise CheckpointError(f"{target} is no name for a new folder; choose another")
    parent = target.absolute().parent
    made = [folder for folder in (parent, *parent.parents) if not folder.exists()]
    new = None
    try:
        parent.mkdir(parents=True, exist_ok=True)
        with interrupts.deferred():
            new = Building(parent / target.name)
        yield new
    except BaseException:
        if new is not None:
            new.discard()
        for folder in made:
            with suppress(OSError):
                folder.rmdir()
        raise


def recover(target: Path, why_not: WhyNot, remove: Remove) -> list[Path]:
    """Finishes or undoes what killed commands left beside a folder; returns what had to be left.

    Args:
        target: the folder that they were making.
        why_not, remove: look into, and remove, a folder that was complete.
    """
    if target.name in ("", "..") or "\0" in str(target):
        return []
    target = target.absolute().parent / target.name
    journals = atomic.hidden_beside(target, JOURNAL)
    left = [path for journal in journals for path in _recovered(target, journal, why_not, remove)]
    return left + _of_earlier_versions(target)


def _recovered(target: Path, journal: Path, why_not: WhyNot, remove: Remove) -> list[Path]:
    try:
        handle = os.open(journal, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
    except OSError:
        return []
    try:
        taken = locks.take(handle) if locks.are_reliable(journal.parent) else None
        if not taken or not atomic.is_still(handle, journal):
            return [journal] if taken is None else []
        left = [path for path in _undone(target, journal) if not _swept(path, _notes(handle), why_not, remove)]
        if not left:
            journal.unlink()
        return left
    except OSError:
        return [journal]
    finally:
        os.close(handle)


def _undone(target: Path, journal: Path) -> list[Path]:
    """Puts an earlier result back that was set aside and not replaced; returns what is left to remove."""
    new, old = _named(journal, ""), _named(journal, OLD)
    if old.is_dir() and not os.path.lexists(target):
        renaming.rename_new(old, target)
    return [path for path in (new, old) if os.path.lexists(path)]


def _swept(path: Path, notes: set[str], why_not: WhyNot, remove: Remove) -> bool:
    """Removes a hidden folder: all of one that was being built, of any other only what is ours."""
    if path.is_symlink() or not path.is_dir():
        return False
    empty = not any(files for _, _, files in os.walk(path))
    if "complete" not in notes or empty:  # it was being built, or removed with its record last
        shutil.rmtree(path)
        return True
    return why_not(path) is None and _removed(path, remove)


def _removed(folder: Path, remove: Remove) -> bool:
    """Removes an earlier result of ours. Where that fails, the new one is in place all the same."""
    try:
        if remove(folder):
            return True
    except OSError as error:
        LOG.warning("%s cannot be removed (%s); look into it and remove it yourself", folder, error.strerror or error)
        return False
    LOG.warning("%s holds something that appeared while it was removed; look into it, remove it yourself", folder)
    return False


def _identity(folder: Path) -> tuple[int, int] | None:
    try:
        there = os.lstat(folder)
    except OSError:
        return None
    return there.st_dev, there.st_ino


def _notes(handle: int) -> set[str]:
    """Returns the steps that a journal says were begun; ignores a line that was cut off."""
    begun = set()
    for line in os.pread(handle, 2**16, 0).splitlines():
        with suppress(ValueError, AttributeError):
            begun |= set(json.loads(line).keys())
    return begun


def _named(journal: Path, more: str) -> Path:
    return journal.with_name(journal.name.removesuffix(JOURNAL) + more)


def _of_earlier_versions(target: Path) -> list[Path]:
    """Returns leftovers of versions without journals, which may belong to a running command."""
    pattern = re.compile(rf"\.{re.escape(target.name[:200])}\.[a-z0-9_]{{8}}\.ropescale(\.old)?")
    try:
        names = sorted(os.listdir(target.parent))
    except OSError:
        return []
    return [target.with_name(name) for name in names if pattern.fullmatch(name)]
