"""Stores finished batches and steps of a run in files, so that an interrupted run can resume.

Below the output folder::

    resume/lock             held while a run writes here; the system releases it when the process dies
    resume/last.json        the facts of the last run
    resume/<rank>.records   the finished work of the process with this rank, which alone appends to this file

A record is identified by its batch's number and by a key, the hash of everything that its numbers depend on. A run with
different weights or a different text finds no records, and a run with an additional schedule finds the records of the
shared schedules. Each record contains its digest, and a damaged record is computed again. SIGKILL costs the record that
is being written, and what follows the last whole record is cut off. Each process reads its own file, and the first
process also reads the files of ranks that this run does not have. The processes exchange their records before any of
them writes.

A resumed run stores the same bytes as an uninterrupted one on the same machine with the same number of threads, which
determines how sums are split and rounded. The number of threads is not part of the key, so a run can resume with a
different number.

A batch is stored as safetensors, one array per name; a step of a search as JSON. A folder may come from somebody else:
files under these names that no run wrote, or that have a second name, are moved aside.
"""

from __future__ import annotations

import json
import os
import shlex
import stat
import struct
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np
from filelock import FileLock, Timeout
from safetensors import SafetensorError
from safetensors.numpy import load, save
from typing_extensions import TypedDict

from ..errors import CheckpointError
from ..files import Damaged, atomic_write, content, failed, made_folder, parse_json, set_aside, sha256
from .checking import Length, fitting
from .parallel.processes import Group, World
from .scoring.batches import Arrays, Batch, BatchPlan, Form

FOLDER = "resume"
Facts = Mapping[str, object]
"""The facts that determine stored numbers, as plain data."""

_LAST = "last.json"

_LARGEST = 2**28
"""The largest record, in bytes."""

_MARK = b"ropescal"
"""The first bytes of a record."""

_HEADER = struct.Struct(">8s64sQQ64s")
"""A record before its content: the mark, the key, the number, the size of the content in bytes, and the digest."""

_FOREIGN = "was not written by a run"


class FinishedBatches:
    """The finished batches of one pass.

    Attributes:
        key: the hash of the facts that determine the pass's numbers.
        batches: the finished batches by number.
    """

    def __init__(self, store: Store, key: str, batches: dict[int, Arrays]) -> None:
        self._store = store
        self.key = key
        self.batches = batches

    def put(self, number: int, arrays: Arrays) -> None:
        """Stores a finished batch.

        Raises:
            CheckpointError: the disk is full or not writable. Earlier batches stay stored.
        """
        self._store.put(self.key, number, save(dict(arrays)))
        self.batches[number] = arrays


WRITE_SECONDS = 60.0
"""The least time between two times that a running measurement writes what is finished as results."""


class Store:
    """The finished batches and steps of a run.

    Args:
        folder: ``resume/`` in the output folder. None stores nothing on disk.
        rank: this process's rank, which names its file.
        others: files of ranks that this run does not have; they are read, but not written.
        write: writes what is finished as results.
    """

    def __init__(
        self,
        folder: Path | None = None,
        rank: int = 0,
        others: tuple[Path, ...] = (),
        write: Callable[[], object] | None = None,
    ) -> None:
        self.folder = folder
        self._others = others
        self._path = folder / f"{rank}.records" if folder is not None else None
        self._file: BinaryIO | None = None
        self._passes: dict[str, FinishedBatches] = {}
        self._write = write
        self._written = time.monotonic()

    def write_parts(self) -> None:
        """Writes what is finished as results, if that was not done in the last :data:`WRITE_SECONDS`."""
        if self._write is not None and time.monotonic() - self._written > WRITE_SECONDS:
            self._written = time.monotonic()
            self._write()

    def batches(self, facts: Facts, plan: BatchPlan, form: Callable[[Batch], Form]) -> FinishedBatches:
        """Returns the finished batches of the pass with these facts; every call with the same facts returns the same
        object.

        Args:
            facts: everything that the pass's numbers depend on, as plain data.
            plan: the batches of the pass.
            form: returns the form of a batch; stored batches of another form, or with NaN or infinity, are ignored.
        """
        key = key_of(facts)
        if key not in self._passes:
            forms = {batch.number: form(batch) for batch in plan.batches}
            found: dict[int, Arrays] = {}
            for number, content in self.records(key):
                with suppress(SafetensorError, LookupError, TypeError, ValueError):
                    arrays = {name: each for name, each in load(content).items() if np.isfinite(each).all()}
                    if forms[number] == {name: (each.dtype.type, each.shape) for name, each in arrays.items()}:
                        found[number] = arrays
            self._passes[key] = FinishedBatches(self, key, found)
        return self._passes[key]

    @property
    def finished(self) -> int:
        """The number of finished batches in the passes read so far."""
        return sum(len(done.batches) for done in self._passes.values())

    def records(self, key: str) -> Iterator[tuple[int, bytes]]:
        """Yields the number and content of every intact record with this key, file by file."""
        for path in (self._path, *self._others):
            if path is None or not path.exists():
                continue
            with _translated(path.parent), path.open("rb") as file:
                for of, number, size, digest in _headers(file):
                    if of == key.encode():
                        content = file.read(size)
                        if digest == _digest(key, number, content):
                            yield number, content

    def put(self, key: str, number: int, content: bytes) -> None:
        """Stores a record.

        Raises:
            CheckpointError: the disk is full or not writable. Earlier records stay stored.
        """
        if self._path is None:
            return
        record = _HEADER.pack(_MARK, key.encode(), number, len(content), _digest(key, number, content)) + content
        with _translated(self._path.parent):
            if self._file is None:
                self._file = _appending(self._path)
            while record:  # a part is written if the disk is nearly full
                record = record[self._file.write(record) :]

    @property
    def last(self) -> dict[str, object]:
        """The facts of the last call of :meth:`begin`; empty before the first one."""
        return {} if self.folder is None else last_run(self.folder.parent)

    def begin(self, about: Facts) -> None:
        """Stores the facts of the current run, and our command."""
        if self.folder is None:
            return
        if words := own_command():
            about = {**about, "command": words}
        with _translated(self.folder):
            atomic_write(self.folder / _LAST, json.dumps(about))

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _headers(file: BinaryIO) -> Iterator[tuple[bytes, int, int, bytes]]:
    """Yields the key, number, size and digest of each record, with the file at the record's content."""
    whole = file.seek(0, os.SEEK_END)
    at = 0
    while at + _HEADER.size <= whole:
        file.seek(at)
        mark, key, number, size, digest = _HEADER.unpack(file.read(_HEADER.size))
        at += _HEADER.size + size
        if mark != _MARK or size > _LARGEST or at > whole:
            return
        yield key, number, size, digest


def _appending(path: Path) -> BinaryIO:
    """Opens a file of records to append to it, and cuts off what follows the last whole record."""
    file = open(path, "a+b", buffering=0)  # noqa: SIM115
    file.truncate(sum(_HEADER.size + size for _, _, size, _ in _headers(file)))
    return file


def own_command() -> str:
    """Returns our command; "" in another program, and if it has an address, which may hold a secret."""
    command = shlex.join(["ropescale", *sys.argv[1:]])
    ours = sys.argv[0].endswith(("ropescale", os.path.join("ropescale", "__main__.py")))
    return command if ours and "://" not in command else ""


def _digest(key: str, number: int, content: bytes) -> bytes:
    return sha256(f"{key} {number} ".encode() + content).encode()


def key_of(facts: Facts) -> str:
    """Hashes the facts as JSON with sorted keys (SHA-256)."""
    return sha256(json.dumps(facts, sort_keys=True).encode())


# --- the folder ---


@contextmanager
def opened(
    out: Path, fresh: bool = False, group: Group | None = None, write: Callable[[], object] | None = None
) -> Iterator[Store]:
    """Opens the store in an output folder for exclusive use inside the ``with`` block.

    Args:
        fresh: discard stored records.
        group: the processes that share the store; the leader holds the lock for all of them.
        write: as for :class:`Store`.

    Raises:
        CheckpointError: another process uses the store, or it cannot be written.
    """
    group = group or Group(World())
    folder = out / FOLDER
    world = group.world
    with group.leader_first(_held(folder, fresh)):
        writing = {folder / f"{rank}.records" for rank in range(0, world.size, world.team)}
        others = tuple(path for path in _files(folder) if path not in writing) if world.leads else ()
        store = Store(folder, world.rank, others, write) if world.writes else Store()
        try:
            yield store
        finally:
            store.close()


class _LastRun(TypedDict, total=False):
    """The facts of the last run that later runs read."""

    facts: Facts
    whole: Facts
    batch_tokens: Length


def last_run(out: Path) -> dict[str, object]:
    """Returns the facts of the last run in an output folder, or {} if they are unknown."""
    try:
        return fitting(parse_json(content(out / FOLDER / _LAST)), _LastRun)
    except Damaged:
        return {}


def has_records(out: Path) -> bool:
    """Returns whether an output folder has finished batches or steps."""
    return any(path.stat().st_size for path in _files(out / FOLDER))


def refuse_if_busy(out: Path) -> None:
    """Raises the error of :func:`opened` early, before the weights are loaded.

    Raises:
        CheckpointError: another process is writing into this output folder.
    """
    if (out / FOLDER / "lock").exists():
        with _locked(out / FOLDER):
            pass


def foreign(folder: Path) -> Path | None:
    """Returns ``folder`` if it exists but is not the ``resume/`` of a run, so that no run may write into it; else
    None."""
    if not os.path.lexists(folder):
        return None
    is_folder = folder.is_dir() and not folder.is_symlink()
    return None if is_folder and ((folder / "lock").is_file() or not any(folder.iterdir())) else folder


@contextmanager
def _held(folder: Path, fresh: bool) -> Iterator[None]:
    """Creates and locks the folder, moves foreign files aside, and deletes stored records if ``fresh``.

    Removes a folder that it created if the block fails before anything is stored.
    """
    with made_folder(folder) as made, _locked(folder):
        try:
            with _translated(folder):
                _sort_out(folder, fresh)
            yield
        except BaseException:
            with suppress(OSError):
                if made and not has_records(folder.parent):
                    for path in (*_files(folder), folder / _LAST):
                        path.unlink(missing_ok=True)
                    if os.listdir(folder) == ["lock"]:  # by which the folder is known, until what is left is swept
                        (folder / "lock").unlink()
            raise


def _sort_out(folder: Path, fresh: bool) -> None:
    """Moves everything aside that no run wrote under the names of its files."""
    for path in (*_files(folder), folder / _LAST):
        if os.path.lexists(path):
            if not _is_plain(path) or (path.name != _LAST and not _has_mark(path)):
                move_aside(path, _FOREIGN)
            elif fresh:
                path.unlink()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with _translated(folder):
        lock = folder / "lock"
        if os.path.lexists(lock) and not _is_plain(lock):  # locking a link would empty the file behind it
            move_aside(lock, _FOREIGN)
        try:
            lock = FileLock(lock).acquire(blocking=False)
        except Timeout:
            raise CheckpointError(
                f"another run is writing into {folder.parent}; wait for it, or choose another folder"
            ) from None
    with lock:
        yield


def _files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.glob("*.records")) if path.stem.isdecimal()]


def _has_mark(path: Path) -> bool:
    """Returns whether a file begins with a record, perhaps one that was cut off."""
    with path.open("rb") as file:
        return _MARK.startswith(file.read(len(_MARK)))


def _is_plain(path: Path) -> bool:
    """Returns whether a path is a regular file without a second name, so that writing changes no other file."""
    found = path.lstat()
    return stat.S_ISREG(found.st_mode) and found.st_nlink == 1


def move_aside(path: Path, why: str) -> None:
    """Renames a file to ``NAME~``, or ``NAME~2`` and so on, without overwriting, and reports this on stderr.

    Args:
        why: the problem, as the end of a sentence about the file.
    """
    free = set_aside(path)
    print(f"note: {path} {why}; it is now called {free.name}", file=sys.stderr)


@contextmanager
def _translated(folder: Path) -> Iterator[None]:
    """Converts errors of the operating system inside the block.

    Raises:
        CheckpointError: the folder, or a file in it, cannot be read or written.
    """
    try:
        yield
    except OSError as error:
        what = f"cannot write into {folder}, where finished work is kept"
        raise failed(what, error) from error
