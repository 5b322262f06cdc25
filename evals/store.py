"""Stores finished batches and steps of a run in SQLite, so that an interrupted run can resume.

Below the output folder::

    resume/lock             held while a run writes here; the system releases it when the process dies
    resume/<rank>.sqlite    the finished work of the process with this rank, which alone writes this file

A record is identified by its batch's number and by a key, the hash of everything that its numbers depend on. A run with
different weights or a different text finds no records, and a run with an additional schedule finds the records of the
shared schedules. Each record contains its digest, and a damaged record is computed again. Commits are grouped, so that
SIGKILL or a power cut costs at most a second of finished work. Each process reads its own file, and the first process
also reads the files of ranks that this run does not have. The processes exchange their records before any of them
writes.

A resumed run stores the same bytes as an uninterrupted one on the same machine with the same number of threads, which
determines how sums are split and rounded. The number of threads is not part of the key, so a run can resume with a
different number.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout

from ..errors import CheckpointError
from ..files import set_aside, sha256
from .parallel.processes import Group, World
from .scoring.batches import BatchPlan, Scored

FOLDER = "resume"
Facts = Mapping[str, object]
"""The facts that determine stored numbers, as plain data."""

_COMMIT_SECONDS = 1.0
_APPLICATION = 0x726F7065
"""SQLite's application id of ropescale's files."""

_TABLES = """
CREATE TABLE IF NOT EXISTS records
    (key TEXT, number INTEGER, parts INTEGER, dtype TEXT, content BLOB, digest TEXT, PRIMARY KEY (key, number));
CREATE TABLE IF NOT EXISTS notes (name TEXT, content TEXT);
"""


_READ = ("SELECT key, number, parts, dtype, content, digest FROM records", "SELECT name, content FROM notes")

STEP = "json"
_DTYPES = ("<f4", "<f8", STEP)


class FinishedBatches:
    """The finished batches of one pass.

    Attributes:
        key: the hash of the facts that determine the pass's numbers.
        batches: the finished batches by number.
    """

    def __init__(self, store: Store, key: str, batches: dict[int, Scored]) -> None:
        self._store, self.key, self.batches = store, key, batches

    def put(self, number: int, scored: Scored) -> None:
        """Stores a finished batch.

        Raises:
            CheckpointError: the disk is full or not writable. Earlier batches stay stored.
        """
        self._store.put(self.key, number, scored.nll.tobytes(), scored.nll.dtype.str, scored.parts)
        self.batches[number] = scored


class Store:
    """The finished batches and steps of a run.

    Args:
        folder: ``resume/`` in the output folder. None stores nothing on disk.
        rank: this process's rank, which names its file.
        others: files of ranks that this run does not have; they are read, but not written.
    """

    def __init__(self, folder: Path | None = None, rank: int = 0, others: tuple[Path, ...] = ()) -> None:
        self.folder, self._others = folder, others
        self._path = folder / f"{rank}.sqlite" if folder is not None else None
        self._open: dict[Path, sqlite3.Connection] = {}
        self._committed = 0.0
        self._passes: dict[str, FinishedBatches] = {}

    def batches(self, facts: Facts, plan: BatchPlan, values: int = 1) -> FinishedBatches:
        """Returns the finished batches of the pass with these facts; every call with the same facts returns the same
        object.

        Args:
            facts: everything that the pass's numbers depend on, as plain data.
            plan: the batches of the pass; stored batches of different sizes are ignored.
            values: the number of stored numbers for each scored token.
        """
        key = key_of(facts)
        if key not in self._passes:
            sizes = {batch.number: values * batch.scored for batch in plan.batches}
            found = {
                number: Scored(np.frombuffer(content, dtype).copy(), parts)
                for number, content, dtype, parts in self.records(key)
            }
            batches = {number: each for number, each in found.items() if sizes.get(number) == len(each.nll)}
            self._passes[key] = FinishedBatches(self, key, batches)
        return self._passes[key]

    @property
    def finished(self) -> int:
        """The number of finished batches in the passes read so far."""
        return sum(len(done.batches) for done in self._passes.values())

    @property
    def is_empty(self) -> bool:
        """Whether this process's file has no records."""
        if self._path is None or not self._path.exists():
            return True
        return self._connected(self._path).execute("SELECT 1 FROM records LIMIT 1").fetchone() is None

    def records(self, key: str) -> Iterator[tuple[int, bytes, str, int]]:
        """Yields the number, content, dtype and parts of every intact record with this key, file by file."""
        query = "SELECT number, parts, dtype, CAST(content AS BLOB), digest FROM records WHERE key = ? ORDER BY number"
        for path in (self._path, *self._others):
            if path is None or not path.exists():
                continue
            with _translated(path.parent):
                for number, parts, dtype, content, digest in self._connected(path).execute(query, (key,)):
                    if dtype in _DTYPES and digest == _digest(key, number, parts, dtype, content):
                        yield number, content, dtype, parts

    def put(self, key: str, number: int, content: bytes, dtype: str, parts: int = 1) -> None:
        """Stores a record, and commits if the last commit is more than a second ago.

        Raises:
            CheckpointError: the disk is full or not writable. Earlier records stay stored.
        """
        digest = _digest(key, number, parts, dtype, content)
        self._write(
            "INSERT OR REPLACE INTO records VALUES (?, ?, ?, ?, ?, ?)", key, number, parts, dtype, content, digest
        )

    @property
    def last(self) -> dict[str, object]:
        """The facts of the last call of :meth:`begin`; empty before the first one."""
        return {} if self._path is None or not self._path.exists() else _last_in(self._connected(self._path))

    def begin(self, about: Facts) -> None:
        """Stores the facts of the current run."""
        self._write("DELETE FROM notes")
        self._write("INSERT INTO notes VALUES ('last', ?)", json.dumps(about))
        self._commit()

    def close(self) -> None:
        """Commits pending records, and closes the files."""
        with _translated(self.folder):
            try:
                self._commit()
            finally:
                for each in self._open.values():
                    each.close()
                self._open.clear()

    def _write(self, statement: str, *values: object) -> None:
        if self._path is None:
            return
        with _translated(self.folder):
            connection = self._connected(self._path)
            try:
                connection.execute(statement, values)
                if time.monotonic() - self._committed > _COMMIT_SECONDS:
                    self._commit()
            except BaseException:
                connection.rollback()
                raise

    def _commit(self) -> None:
        if self._path in self._open:
            self._open[self._path].commit()
            self._committed = time.monotonic()

    def _connected(self, path: Path) -> sqlite3.Connection:
        if path not in self._open:
            is_new = not path.exists() or not path.stat().st_size
            connection = sqlite3.connect(path)
            if is_new:
                connection.executescript(f"BEGIN; PRAGMA application_id = {_APPLICATION}; {_TABLES} COMMIT;")
            self._open[path] = connection
        return self._open[path]


def _digest(key: str, number: int, parts: int, dtype: str, content: bytes) -> str:
    return hashlib.sha256(f"{key} {number} {parts} {dtype} ".encode() + content).hexdigest()


def key_of(facts: Facts) -> str:
    """Hashes the facts as JSON with sorted keys (SHA-256)."""
    return sha256(json.dumps(facts, sort_keys=True).encode())


# --- the folder ---


@contextmanager
def opened(out: Path, fresh: bool = False, group: Group | None = None) -> Iterator[Store]:
    """Opens the store in an output folder for exclusive use inside the ``with`` block.

    Args:
        fresh: discard stored records.
        group: the processes that share the store; the leader holds the lock for all of them.

    Raises:
        CheckpointError: another process uses the store, or it cannot be written.
    """
    group, folder = group or Group(World()), out / FOLDER
    world = group.world
    with group.leader_first(_held(folder, fresh)):
        writing = {folder / f"{rank}.sqlite" for rank in range(0, world.size, world.team)}
        others = tuple(path for path in _files(folder) if path not in writing) if world.leads else ()
        store = Store(folder, world.rank, others) if world.writes else Store()
        try:
            yield store
        finally:
            store.close()


def last_run(out: Path) -> dict[str, object]:
    """Returns the facts of the last run in an output folder, or {} if they are unknown. Changes nothing."""
    path = out / FOLDER / "0.sqlite"
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            return {}
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            return _last_in(connection)
    except (sqlite3.Error, OSError):
        return {}


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
    """Creates and locks the folder, moves damaged files aside, and deletes stored records if ``fresh``.

    Removes a folder that it created if the block fails before anything is stored.
    """
    made = [each for each in (folder, folder.parent) if not os.path.lexists(each)]
    with _translated(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        try:
            with _translated(folder):
                for path in (*folder.glob("*.sqlite-journal"), *folder.glob("*.sqlite-wal")):
                    if not _is_journal(path):  # SQLite would delete it
                        move_aside(path, "was not written by a run")
                for path in _files(folder):
                    if not _is_whole(path):
                        move_aside(path, "is damaged, or was not written by a run")
                    elif fresh:
                        path.unlink()
            yield
        except BaseException:
            for each in made:
                with suppress(OSError):
                    if set(os.listdir(each)) <= {"lock"}:
                        (each / "lock").unlink(missing_ok=True)
                        each.rmdir()
            raise


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with _translated(folder):
        try:
            lock = FileLock(folder / "lock").acquire(blocking=False)
        except Timeout:
            raise CheckpointError(
                f"another run is writing into {folder.parent}; wait for it, or choose another folder"
            ) from None
    with lock:
        yield


def _files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.glob("*.sqlite")) if path.stem.isdecimal()]


def _is_whole(path: Path) -> bool:
    """Returns whether a file is an undamaged database that a run wrote."""
    if not stat.S_ISREG(path.lstat().st_mode):
        return False
    try:
        with closing(sqlite3.connect(path)) as connection:
            if not path.stat().st_size:
                return True
            for query in _READ:
                connection.execute(f"{query} LIMIT 0")
            checked = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "quick_check")]
            return checked == [_APPLICATION, "ok"]
    except UnicodeDecodeError:
        return False  # SQLite quotes damaged bytes in its message
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
            raise  # an error of the disk, not of a file without our tables
        return False


def _is_journal(path: Path) -> bool:
    """Returns whether a file next to a database is a journal of SQLite, which may contain the last transaction of a
    killed run."""
    if not stat.S_ISREG(path.lstat().st_mode):
        return False
    with path.open("rb") as file:
        start = file.read(4)
    return start in (b"", b"\0\0\0\0", b"\xd9\xd5\x05\xf9")  # empty, not synced, or complete


def _last_in(connection: sqlite3.Connection) -> dict[str, object]:
    row = connection.execute("SELECT CAST(content AS BLOB) FROM notes WHERE name = 'last'").fetchone()
    with suppress(ValueError, RecursionError):
        found = json.loads(row[0]) if row else {}
        return found if isinstance(found, dict) else {}
    return {}


def move_aside(path: Path, why: str) -> None:
    """Renames a file to ``NAME~``, or ``NAME~2`` and so on, without overwriting, and reports this on stderr.

    Args:
        why: the problem, as the end of a sentence about the file.
    """
    free = set_aside(path)
    print(f"note: {path} {why}; it is now called {free.name}", file=sys.stderr)


@contextmanager
def _translated(folder: Path | None) -> Iterator[None]:
    """Converts errors of the operating system and of SQLite inside the block.

    Raises:
        CheckpointError: the folder, or a file in it, cannot be read or written.
    """
    try:
        yield
    except CheckpointError:
        raise
    except (OSError, sqlite3.Error) as error:
        why = getattr(error, "strerror", None) or error
        raise CheckpointError(
            f"cannot write into {folder}: {why}; finished work is kept; run the same command to continue once this "
            "is repaired"
        ) from error
