"""Making a folder beside its place: it is there whole or not at all, and what a killed command left is cleared away.

A folder ``OUT`` is built as ``.OUT.<token>.ropescale``. A journal beside it, ``.OUT.<token>.ropescale-journal``, is
made first, removed last and locked as long as its writer lives, so whoever finds one without a holder knows that the
folders it speaks of were left by a killed command. The record of a checkpoint is written into it last and removed
last: a folder without one was being built, and one with a record says what in it is ours.

An ``OUT`` that is to be replaced is exchanged for the new folder in one step. Where the system cannot do that, it is
set aside as ``.OUT.<token>.ropescale-old``, which the journal says beforehand; a later command puts it back.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from . import atomic, interrupts, locks, renaming
from .errors import CheckpointError

JOURNAL, OLD = "-journal", "-old"

Remove = Callable[[Path, bool], "str | None"]
"""Removes a folder if all in it is ours; else says what is not, and leaves it. The flag says that the folder was
complete once, so that only its record can tell what is ours; without it, it was being built, and all of it is."""


class Building:
    """A folder that is being made.

    Attributes:
        path: where it is made.
        target: where it will be.
    """

    def __init__(self, target: Path) -> None:
        self.target = target
        self._handle, self._journal = _opened(target)
        self.path, self._old = _named(self._journal, ""), _named(self._journal, OLD)
        try:
            self._note("building", self.path)
            self.path.mkdir()
        except BaseException:
            self.discard()
            raise

    def place(self) -> None:
        """Give it its name, which nothing may have.

        Raises:
            CheckpointError: something of that name has appeared.
        """
        with interrupts.deferred():
            try:
                renaming.rename_new(self.path, self.target)
            except OSError as error:
                if not os.path.lexists(self.target):
                    raise
                raise CheckpointError(
                    f"{self.target} exists already: it appeared meanwhile; choose another folder, or remove it"
                ) from error
            self._close()

    def place_in_empty(self) -> None:
        """Give it the name of an empty folder.

        Raises:
            CheckpointError: that folder is no longer empty.
        """
        with interrupts.deferred():
            try:
                os.rename(self.path, self.target)
            except OSError as error:
                raise CheckpointError(f"{self.target} is not empty any more; choose another folder") from error
            self._close()

    def replace(self, remove: Remove) -> None:
        """Take the place of an earlier result, which is removed; whole, whatever interrupts it.

        Raises:
            CheckpointError: the earlier result holds something that is not ours; it is where it was.
        """
        with interrupts.deferred():
            self._note("complete", self.path)
            earlier = self.path if renaming.exchange(self.path, self.target) else self._set_aside()
            foreign = remove(earlier, True)
            if foreign is not None:
                self._take_back(earlier)
                raise CheckpointError(foreign)
            self._close()

    def _set_aside(self) -> Path:
        """Two renames for one exchange; between them the journal is what a later command goes by."""
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
        """Remove it, and its journal if nothing is left that a later command must know of."""
        with interrupts.deferred():
            shutil.rmtree(self.path, ignore_errors=True)
            self._close(keep=os.path.lexists(self.path) or os.path.lexists(self._old))

    def _note(self, what: str, path: Path) -> None:
        os.write(self._handle, json.dumps({what: path.name}).encode() + b"\n")
        if what != "building":  # what is being built may be lost in a power cut, what is set aside may not
            os.fsync(self._handle)

    def _close(self, keep: bool = False) -> None:
        """Let go of the journal, and remove it unless it has something to say to a later command."""
        with suppress(OSError):
            if not keep:
                self._journal.unlink()
        with suppress(OSError):
            os.close(self._handle)


@contextmanager
def building(target: Path) -> Iterator[Building]:
    """A new hidden folder next to ``target``; gone afterwards, unless it was given its place."""
    parent = target.absolute().parent
    made = [folder for folder in (parent, *parent.parents) if not folder.exists()]
    new = None
    try:
        parent.mkdir(parents=True, exist_ok=True)
        new = Building(parent / target.name)
        yield new
    except BaseException:
        if new is not None:
            new.discard()
        for folder in made:
            with suppress(OSError):
                folder.rmdir()
        raise


def recover(target: Path, remove: Remove) -> list[Path]:
    """Finish or undo what killed commands left beside a folder; give what had to be left.

    Args:
        target: the folder that they were making.
        remove: removes a folder that was complete, if all in it is ours.
    """
    if target.name in ("", "..") or "\0" in str(target):
        return []
    target = target.absolute().parent / target.name
    left = [path for journal in atomic.hidden_beside(target, JOURNAL) for path in _recovered(target, journal, remove)]
    return left + _of_earlier_versions(target)


def _recovered(target: Path, journal: Path, remove: Remove) -> list[Path]:
    try:
        handle = os.open(journal, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
    except OSError:
        return []
    try:
        taken = locks.take(handle) if locks.are_reliable(journal.parent) else None
        if not taken or not atomic.is_still(handle, journal):
            return [journal] if taken is None else []
        left = _undone(target, journal, _notes(handle), remove)
        if not left:
            journal.unlink()
        return left
    except OSError:
        return [journal]
    finally:
        os.close(handle)


def _undone(target: Path, journal: Path, notes: set[str], remove: Remove) -> list[Path]:
    """Put an earlier result back that was set aside and not replaced, and remove the rest."""
    new, old = _named(journal, ""), _named(journal, OLD)
    if old.is_dir() and not os.path.lexists(target):
        renaming.rename_new(old, target)
    if new.is_dir() and old.is_dir():  # the new folder never took the place, and something else has it
        return [old]
    there = [path for path in (new, old) if os.path.lexists(path)]
    return [path for path in there if path.is_symlink() or remove(path, "complete" in notes) is not None]


def _notes(handle: int) -> set[str]:
    """What a journal says was begun; a line that a kill cut off was not."""
    begun = set()
    for line in os.pread(handle, 2**16, 0).splitlines():
        with suppress(ValueError, AttributeError):
            begun |= set(json.loads(line).keys())
    return begun


def _opened(target: Path) -> tuple[int, Path]:
    """Make a journal and lock it; again where somebody swept it before the lock."""
    while True:
        journal = target.with_name(atomic.hidden_name(target.name) + JOURNAL)
        handle = os.open(journal, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o666)
        if locks.take(handle) is not False and atomic.is_still(handle, journal):
            return handle, journal
        os.close(handle)


def _named(journal: Path, more: str) -> Path:
    return journal.with_name(journal.name.removesuffix(JOURNAL) + more)


def _of_earlier_versions(target: Path) -> list[Path]:
    """What versions without journals left: nobody can tell whether a living command is writing it."""
    pattern = re.compile(rf"\.{re.escape(target.name[:200])}\.[a-z0-9_]{{8}}\.ropescale(\.old)?")
    try:
        names = sorted(os.listdir(target.parent))
    except OSError:
        return []
    return [target.with_name(name) for name in names if pattern.fullmatch(name)]
