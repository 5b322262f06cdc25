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

A batch is stored as safetensors, one array per name; a step of a search as JSON.

A folder may come from somebody else, and SQLite does what a file says: a journal may name another file to delete, and a
schema may compute without end. So before SQLite reads a table, the file must have exactly our tables, and no second
name; a journal must be one that a killed run leaves. Everything else is moved aside.
"""

from __future__ import annotations

import json
import os
import shlex
import sqlite3
import stat
import struct
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout
from safetensors import SafetensorError
from safetensors.numpy import load, save

from ..errors import CheckpointError, StorageError
from ..files import failed, made_folder, set_aside, sha256
from .parallel.processes import Group, World
from .scoring.batches import Arrays, Batch, BatchPlan, Form

FOLDER = "resume"
Facts = Mapping[str, object]
"""The facts that determine stored numbers, as plain data."""

_COMMIT_SECONDS = 1.0
_LARGEST = 2**28
"""The largest record and statement of a schema, in bytes."""

_APPLICATION = 0x726F7065
"""SQLite's application id of ropescale's files."""

_UNCHANGED = "mode=ro&immutable=1"
"""Reads a database alone, and no file beside it."""

_FOREIGN = "was not written by a run"

_START, _JOURNAL = b"SQLite format 3\0", b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7"
"""The first bytes of a database, and of a complete journal (sqlite.org/fileformat.html)."""

_TABLES = """
CREATE TABLE IF NOT EXISTS records
    (key TEXT, number INTEGER, content BLOB, digest TEXT, PRIMARY KEY (key, number));
CREATE TABLE IF NOT EXISTS notes (name TEXT, content TEXT);
"""

_RECORDS = """
SELECT number, content, CAST(digest AS BLOB) FROM records
WHERE key = ? AND typeof(number) = 'integer' AND typeof(content) = 'blob'
ORDER BY number
"""


class FinishedBatches:
    """The finished batches of one pass.

    Attributes:
        key: the hash of the facts that determine the pass's numbers.
        batches: the finished batches by number.
    """

    def __init__(self, store: Store, key: str, batches: dict[int, Arrays]) -> None:
        self._store, self.key, self.batches = store, key, batches

    def put(self, number: int, arrays: Arrays) -> None:
        """Stores a finished batch.

        Raises:
            CheckpointError: the disk is full or not writable. Earlier batches stay stored.
        """
        self._store.put(self.key, number, save(dict(arrays)))
        self.batches[number] = arrays


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

    def batches(self, facts: Facts, plan: BatchPlan, form: Callable[[Batch], Form]) -> FinishedBatches:
        """Returns the finished batches of the pass with these facts; every call with the same facts returns the same
        object.

        Args:
            facts: everything that the pass's numbers depend on, as plain data.
            plan: the batches of the pass.
            form: returns the form of a batch; stored batches of another form are ignored.
        """
        key = key_of(facts)
        if key not in self._passes:
            forms = {batch.number: form(batch) for batch in plan.batches}
            found: dict[int, Arrays] = {}
            for number, content in self.records(key):
                with suppress(SafetensorError, LookupError, TypeError, ValueError):
                    arrays = load(content)
                    if forms[number] == {name: (each.dtype.type, each.shape) for name, each in arrays.items()}:
                        found[number] = arrays
            self._passes[key] = FinishedBatches(self, key, found)
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
        with _translated(self.folder):
            return self._connected(self._path).execute("SELECT 1 FROM records LIMIT 1").fetchone() is None

    def records(self, key: str) -> Iterator[tuple[int, bytes]]:
        """Yields the number and content of every intact record with this key, file by file."""
        for path in (self._path, *self._others):
            if path is None or not path.exists():
                continue
            with _translated(path.parent):
                for number, content, digest in self._connected(path).execute(_RECORDS, (key,)):
                    if digest == _digest(key, number, content).encode():
                        yield number, content

    def put(self, key: str, number: int, content: bytes) -> None:
        """Stores a record, and commits if the last commit is more than a second ago.

        Raises:
            CheckpointError: the disk is full or not writable. Earlier records stay stored.
        """
        digest = _digest(key, number, content)
        self._write("INSERT OR REPLACE INTO records VALUES (?, ?, ?, ?)", key, number, content, digest)

    @property
    def last(self) -> dict[str, object]:
        """The facts of the last call of :meth:`begin`; empty before the first one."""
        if self._path is None or not self._path.exists():
            return {}
        with _translated(self.folder):
            return _last_in(self._connected(self._path))

    def begin(self, about: Facts) -> None:
        """Stores the facts of the current run, and our command unless that has an address, which may hold a secret."""
        command = shlex.join(["ropescale", *sys.argv[1:]])
        if sys.argv[0].endswith("ropescale") and "://" not in command:
            about = {**about, "command": command}
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
            connection = _connection(path)
            if is_new:
                connection.executescript(f"BEGIN; PRAGMA application_id = {_APPLICATION}; {_TABLES} COMMIT;")
            self._open[path] = connection
        return self._open[path]


def _digest(key: str, number: int, content: bytes) -> str:
    return sha256(f"{key} {number} ".encode() + content)


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
        if _is_plain(path) and _has_our_tables(path):
            with closing(_connection(path, _UNCHANGED)) as connection:
                return _last_in(connection)
    except (sqlite3.Error, OSError, UnicodeDecodeError):
        pass
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
    with made_folder(folder) as made, _locked(folder):
        try:
            with _translated(folder):
                _sort_out(folder, fresh)
            yield
        except BaseException:
            with suppress(OSError):
                if made and not any(map(_has_records, _files(folder))):
                    for path in (*_files(folder), folder / "lock"):
                        path.unlink()
            raise


def _sort_out(folder: Path, fresh: bool) -> None:
    """Moves everything aside that no run wrote under the names of its files, before SQLite opens any of them."""
    for path in folder.glob("*.sqlite-*"):
        if path.name.endswith(("-wal", "-shm")) or (path.name.endswith("-journal") and not _is_journal(path)):
            move_aside(path, _FOREIGN)
    for path in _files(folder):
        if not _is_whole(path):
            move_aside(path, f"is damaged, or {_FOREIGN}")
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
    return [path for path in sorted(folder.glob("*.sqlite")) if path.stem.isdecimal()]


def _connection(path: Path, how: str = "mode=rwc") -> sqlite3.Connection:
    """Opens a database; only one that :func:`_is_whole` has seen, or to read it with ``_UNCHANGED``."""
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?{how}", uri=True)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LARGEST)
    connection.execute("PRAGMA trusted_schema = OFF")
    return connection


def _has_records(path: Path) -> bool:
    """Returns whether a run's database has a record; changes nothing."""
    try:
        with closing(_connection(path, _UNCHANGED)) as connection:
            return connection.execute("SELECT 1 FROM records LIMIT 1").fetchone() is not None
    except sqlite3.Error:
        return False


def _is_plain(path: Path) -> bool:
    """Returns whether a path is a regular file without a second name, so that writing changes no other file."""
    found = path.lstat()
    return stat.S_ISREG(found.st_mode) and found.st_nlink == 1


def _is_whole(path: Path) -> bool:
    """Returns whether a file is an undamaged database that a run wrote. Completes the rollback of a killed run."""
    if not _is_plain(path):
        return False
    try:
        with closing(_connection(path)) as connection:
            connection.execute("PRAGMA user_version").fetchone()  # rolls back, and parses no schema
        return not path.stat().st_size or _has_our_tables(path, check=True)
    except UnicodeDecodeError:
        return False  # SQLite quotes damaged bytes in its message
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
        if isinstance(error, sqlite3.OperationalError) and code != sqlite3.SQLITE_ERROR:
            raise  # an error of the disk, not of a file without our tables
        return False


def _has_our_tables(path: Path, check: bool = False) -> bool:
    """Returns whether a database has exactly the tables of a run, so that SQLite computes nothing when it reads them.

    Args:
        check: look for damage in the whole file as well.
    """
    with path.open("rb") as file:
        start = file.read(105)
    is_ours = start[:16] == _START and start[68:72] == _APPLICATION.to_bytes(4)
    has_three_entries = start[100:101] == b"\x0d" and start[103:] == b"\0\3"  # in one page
    if not is_ours or not has_three_entries or start[18:20] != b"\1\1":  # 2: SQLite would write a -wal file
        return False
    with closing(_connection(path, _UNCHANGED)) as connection, closing(sqlite3.connect(":memory:")) as ours:
        ours.executescript(_TABLES)
        schemas = []
        for each in (connection, ours):
            each.text_factory = bytes
            schemas.append(each.execute("SELECT type, name, tbl_name, sql FROM sqlite_master").fetchall())
        if schemas[0] != schemas[1]:
            return False
        return not check or connection.execute("PRAGMA quick_check(1)").fetchone() == (b"ok",)


def _is_journal(path: Path) -> bool:
    """Returns whether a file next to a database is a journal of SQLite, which may contain the last transaction of a
    killed run. A run's journal never names another journal at its end, and never makes the database larger."""
    if not _is_plain(path):
        return False
    database = path.with_name(path.name.removesuffix("-journal"))
    whole = database.stat().st_size if os.path.lexists(database) else 0
    with path.open("rb") as file:
        start = file.read(28).ljust(28, b"\0")
        file.seek(max(0, path.stat().st_size - 8))
        end = file.read()
    pages, _, page = struct.unpack(">III", start[16:])
    is_begun = start[:8] in (_JOURNAL, bytes(8))  # complete, or not synced, or empty
    return is_begun and end != _JOURNAL and pages * page <= whole


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
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # SQLite hides what the system said
        kind = StorageError if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR) else CheckpointError
        raise kind(
            f"cannot write into {folder}: {error}; finished work is kept; run the same command to continue once this "
            "is repaired (free some space, or raise ulimit -f)"
        ) from error
    except OSError as error:
        raise failed(f"cannot write into {folder}", error) from error
