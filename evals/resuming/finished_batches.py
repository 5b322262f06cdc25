"""Finished batches on disk, so that a run that was killed continues where it was.

Below the output folder::

    resume/lock                   held while a run writes here; the system lets go of it when the process dies
    resume/run.json               what the last run measured, to say what changed since
    resume/timing.jsonl           how long each process took that ran here; nothing depends on it
    resume/<key>/facts.json       all that the numbers of one pass depend on; <key> is the beginning of its sha256
    resume/<key>/0.log            its finished batches, one record each, appended as they finish

A pass is found by its facts and by nothing else: a run with other weights, other text or another stride makes a
folder beside, and one with another schedule more finds what it shares. Of a log, a record counts when its checksum
is right; what a kill cut off in the middle is dropped when the next run opens it. One process writes one log; a pass
that several processes share has one log from each, and is read from all of them. Of a team that scores each batch
together, one process writes.

Numbers are the same bytes whether a run was interrupted or not, on the same machine with the same number of threads
(which decides how sums are split, and so how they round; it is no fact, so that a run can go on with more of them).
"""

from __future__ import annotations

import itertools
import json
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock, Timeout

from ...errors import CheckpointError
from ...files import atomic_write, sha256
from ..parallel.processes import Group, World
from ..run_folder import checking, formats
from ..run_folder.checking import Wrong
from ..run_folder.leftovers import is_folder, is_regular, none_in, sweep_records, sweep_run
from ..running.batches import BatchPlan
from .batch_log import MAGIC, Scored, record, records

FOLDER = "resume"
Facts = Mapping[str, object]
"""All that some numbers depend on, as plain data."""

_SYNC_SECONDS = 1.0
"""How much a power cut may cost. What the process has written survives the process without."""


class Shelf:
    """The finished batches of one pass, by number; in memory.

    Attributes:
        key: the hash of all that its numbers depend on.
    """

    def __init__(self, key: str = "") -> None:
        self.key = key
        self.batches: dict[int, Scored] = {}

    def put(self, number: int, scored: Scored) -> None:
        """Keeps a batch that is finished."""
        self.batches[number] = scored

    def close(self) -> None:
        """Settles what has been put; nothing more will be."""


class Store:
    """The shelves of a run; in memory, so they are gone with it."""

    def __init__(self) -> None:
        self._shelves: dict[str, Shelf] = {}

    def shelf(self, facts: Facts, plan: BatchPlan, values: int = 1) -> Shelf:
        """Returns the shelf of the pass with these facts; the same one for the same facts.

        Args:
            facts: all that its numbers depend on, as plain data.
            plan: its batches.
            values: how many numbers there are for each scored token.
        """
        key = key_of(facts)
        if key not in self._shelves:
            self._shelves[key] = self._make(key, facts, plan, values)
        return self._shelves[key]

    @property
    def last(self) -> dict[str, object]:
        """The facts that :meth:`begin` was told last time; empty at first."""
        return {}

    def begin(self, about: Facts) -> None:
        """Remembers what is being measured."""

    def note(self, timing: Facts) -> None:
        """Remembers how long a process took, for whoever wants to know."""

    @property
    def finished(self) -> int:
        """The number of batches on the shelves that were asked for."""
        return sum(len(shelf.batches) for shelf in self._shelves.values())

    def close(self) -> None:
        """Closes every shelf."""
        for shelf in self._shelves.values():
            shelf.close()

    def _make(self, key: str, facts: Facts, plan: BatchPlan, values: int) -> Shelf:
        return Shelf(key)


class FolderStore(Store):
    """The shelves of a run below its output folder; see :func:`opened`."""

    def __init__(self, folder: Path, writer: int | None = 0) -> None:
        super().__init__()
        self.folder, self.writer = folder, writer

    @property
    def last(self) -> dict[str, object]:
        try:
            found = checking.checked(self.folder / "run.json", formats.LAST)
            return {name: value for name, value in found.items() if name != checking.SEAL}
        except Wrong:
            return {}

    def begin(self, about: Facts) -> None:
        with kept(self.folder):
            atomic_write(self.folder / "run.json", checking.sealed(about))

    def note(self, timing: Facts) -> None:
        with kept(self.folder), open(self.folder / "timing.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(timing) + "\n")

    def clear(self) -> None:
        """Forgets every pass; what is not one stays, and so does what somebody put beside its files."""
        with kept(self.folder):
            for folder in _passes(self.folder):
                for path in [*folder.glob("*.log"), folder / "facts.json"]:
                    if path.name == "facts.json" or path.stem.isdecimal():
                        path.unlink(missing_ok=True)
                with suppress(OSError):
                    folder.rmdir()
            (self.folder / "run.json").unlink(missing_ok=True)

    def tidy(self) -> None:
        """Removes what a killed run left half written, and sets aside what is damaged: so only that is done again."""
        with kept(self.folder):
            sweep_run(self.folder.parent)
            sweep_records(self.folder)
            for folder in _passes(self.folder):
                sweep_records(folder)
                if not _is_whole(folder):
                    _set_aside(folder, "the pass that it held is run again")
            record = self.folder / "run.json"
            if os.path.lexists(record) and not self.last:
                _set_aside(record, "what changed since the last run is not known")

    def _make(self, key: str, facts: Facts, plan: BatchPlan, values: int) -> Shelf:
        return FolderShelf(self.folder / key[:16], facts, plan, self.writer, values)


class FolderShelf(Shelf):
    """The finished batches of one pass in a folder of its own."""

    def __init__(self, folder: Path, facts: Facts, plan: BatchPlan, writer: int | None = 0, values: int = 1) -> None:
        super().__init__(key_of(facts))
        self.folder, self.facts, self.writer, self.log = folder, facts, writer, folder / f"{writer}.log"
        self._file: BinaryIO | None = None
        self._synced = 0.0
        self._size = 0
        with kept(folder):
            self._read({batch.number: values * batch.scored for batch in plan.batches})

    def put(self, number: int, scored: Scored) -> None:
        """Appends the batch to the log; it is safe from the end of this process when this returns.

        Raises:
            CheckpointError: the disk is full, or does not let us. The batches before are kept.
        """
        if self.writer is not None:
            with kept(self.folder):
                self._append(record(number, scored))
        super().put(number, scored)

    def close(self) -> None:
        if self._file is not None:
            with kept(self.folder), self._file as file:
                self._file = None
                os.fsync(file.fileno())

    def _read(self, sizes: Mapping[int, int]) -> None:
        logs, facts = sorted(self.folder.glob("*.log")), self.folder / "facts.json"
        if not logs and not facts.exists():  # nor where a run was killed before it wrote the first
            return
        if _facts_in(self.folder) != self.facts:
            raise CheckpointError(
                f"{self.folder} is not what a run wrote; remove it, or choose another folder with out=OUT"
            )
        for log in logs:
            found, good = records(log.read_bytes())
            self.batches |= {n: each for n, each in found.items() if sizes.get(n) == len(each.nll)}
            self._size = good if log == self.log else self._size

    def _append(self, content: bytes) -> None:
        if self._file is None:
            self._file = self._open()
        try:
            _write_all(self._file, content)
            if time.monotonic() - self._synced > _SYNC_SECONDS:
                os.fsync(self._file.fileno())
                self._synced = time.monotonic()
        except BaseException:
            self._file.truncate(self._size)  # a record cut off would hide the ones after it
            raise
        self._size += len(content)

    def _open(self) -> BinaryIO:
        self.folder.mkdir(parents=True, exist_ok=True)
        if not (self.folder / "facts.json").exists():
            atomic_write(self.folder / "facts.json", json.dumps(self.facts, indent=1))
        file = open(self.log, "ab", buffering=0)  # noqa: SIM115 (open as long as the run is)
        file.truncate(self._size)
        return file


@contextmanager
def opened(out: Path, fresh: bool = False, group: Group | None = None) -> Iterator[FolderStore]:
    """Opens the store below an output folder, for us alone inside.

    Args:
        fresh: forget what is in it.
        group: the processes that share it; the leader holds the lock for all of them.

    Raises:
        CheckpointError: another process has it, or it cannot be written.
    """
    group, folder = group or Group(World()), out / FOLDER
    with group.leader_first(_held(folder, fresh)):
        store = FolderStore(folder, group.world.rank if group.world.writes else None)
        try:
            yield store
        finally:
            store.close()


@contextmanager
def _held(folder: Path, fresh: bool) -> Iterator[None]:
    """Makes and locks the folder, and empties it where that is wanted."""
    made = [each for each in (folder, folder.parent) if not os.path.lexists(each)]
    with kept(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder), none_in(made):
        FolderStore(folder).tidy()
        if fresh:
            FolderStore(folder).clear()
        yield


def refuse_if_busy(out: Path) -> None:
    """Says at once what :func:`opened` would say after minutes of reading weights.

    Raises:
        CheckpointError: another process writes into this output folder.
    """
    if (out / FOLDER / "lock").exists():
        with _locked(out / FOLDER):
            pass


def foreign(folder: Path) -> Path | None:
    """Finds what a run may not write into or over: ``resume/`` or a file in it; None where all is a run's own."""
    if not os.path.lexists(folder):
        return None
    if folder.is_symlink() or not folder.is_dir():
        return folder
    there = [folder / name for name in _OWN if os.path.lexists(folder / name)]
    odd = next((path for path in there if not (is_regular(path) and _OWN[path.name](path))), None)
    return odd or (None if (folder / "lock").exists() or not any(folder.iterdir()) else folder)


def _is_lock(path: Path) -> bool:
    """Whether it is empty or, on file systems without locks, begins with the number of its holder's process."""
    with open(path, "rb") as file:
        return re.fullmatch(rb"|[0-9]+\s.{,999}", file.read(1010), re.DOTALL) is not None


def _begins(start: bytes) -> Callable[[Path], bool]:
    """Returns a check whether a file begins so, as far as it goes."""

    def begins(path: Path) -> bool:
        with open(path, "rb") as file:
            return start.startswith(file.read(len(start)))

    return begins


_OWN: dict[str, Callable[[Path], bool]] = {
    "lock": _is_lock,
    "holder": _begins(b"process "),
    "timing.jsonl": _begins(b'{"tokens": '),
}
"""Files in ``resume/`` that are written over, or after what they hold. What is damaged of the others is set aside."""


def _passes(folder: Path) -> list[Path]:
    """Lists the folders of passes, recognized by their names."""
    return [path for path in sorted(folder.iterdir()) if _KEY.fullmatch(path.name) and is_folder(path)]


_KEY = re.compile("[0-9a-f]{16}")


def _is_whole(folder: Path) -> bool:
    """Whether a pass's folder has its facts, or nothing yet; and nothing else under the names of its files."""
    logs = [path for path in folder.iterdir() if path.suffix == ".log"]
    if not all(is_regular(log) and _begins(MAGIC)(log) for log in logs):
        return False
    if not os.path.lexists(folder / "facts.json"):
        return not logs
    facts = _facts_in(folder)
    return facts is not None and key_of(facts)[:16] == folder.name


def _facts_in(folder: Path) -> dict[str, object] | None:
    path = folder / "facts.json"
    try:
        return checking.parsed(path) if is_regular(path) else None
    except Wrong:
        return None


def _set_aside(path: Path, then: str) -> None:
    """Gives a damaged file or folder another name, because what is in it may be somebody's, and says so."""
    names = (f"{path.name}.damaged{'' if n == 1 else f'-{n}'}" for n in itertools.count(1))
    free = next(path.with_name(name) for name in names if not os.path.lexists(path.with_name(name)))
    path.rename(free)
    print(
        f"note: {path} is damaged, or not what a run wrote; it is now called {free.name}, and {then}", file=sys.stderr
    )


def key_of(facts: Facts) -> str:
    """Hashes the facts as JSON with sorted keys (SHA-256)."""
    return sha256(json.dumps(facts, sort_keys=True).encode())


def _write_all(file: BinaryIO, content: bytes) -> None:
    """Writes all of it: an unbuffered file may take less than it is given."""
    rest = memoryview(content)
    while rest:
        rest = rest[file.write(rest) :]


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    lock, holder = FileLock(folder / "lock"), folder / "holder"
    with kept(folder):
        try:
            lock.acquire(blocking=False)
        except Timeout:
            raise CheckpointError(_busy(folder, holder)) from None
    try:
        with kept(folder):
            holder.write_text(f"process {os.getpid()} on {socket.gethostname()}", encoding="utf-8")
        yield
    finally:
        lock.release()


def _busy(folder: Path, holder: Path) -> str:
    try:
        who = f" ({holder.read_text(encoding='utf-8')})"
    except OSError:
        who = ""
    return f"another run{who} is writing into {folder.parent}; wait for it, or choose another folder with out=OUT"


@contextmanager
def kept(folder: Path, what: str | None = "batches") -> Iterator[None]:
    """Turns what the system says about the disk into one sentence; ``what`` is kept in the folder, if anything.

    Raises:
        CheckpointError: something below the folder cannot be read or written.
    """
    try:
        yield
    except CheckpointError:
        raise
    except OSError as error:
        then = f"; the {what} before are kept, the same command continues once this is repaired" if what else ""
        raise CheckpointError(f"cannot write into {folder}: {error.strerror or error}{then}") from error
