"""Reads files that may be hostile, and writes files and folders atomically.

A file or folder is written next to the target under a hidden name, ``.NAME.<digits>.ropescale``, and renamed at the
end. The writing process holds a lock, ``.NAME.<digits>.ropescale-lock``. The first half of the digits identifies the
host and its boot: on another host, or after a restart, a free lock does not prove that the writer has ended. The next
process that writes the same name removes the leftovers of a killed process.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import logging
import os
import platform
import re
import secrets
import shutil
import signal
import stat
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, Literal, Never, TypeGuard, TypeVar

from .errors import CheckpointError, ConfigError, DataError, StorageError

LOG = logging.getLogger(__name__)

Json = Mapping[str, object]
"""A JSON object, such as a configuration or rope parameters; not to be changed."""

Data = dict[str, object]
"""A JSON object, or other values by name, for its receiver to keep."""

Contents = Mapping[str, bytes]
"""The content of files, by name."""

T = TypeVar("T")


AnyPath = str | os.PathLike[str]
"""The path of a file or folder."""


def present(values: Mapping[str, T | None]) -> dict[str, T]:
    """Returns the values that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value is a number; a boolean is none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


# ---------------------------------------------------------------------------------------------------------
# Reading

LARGEST = 64 * 2**20
"""The largest file to read, in bytes; configurations have thousands of bytes, tokenizers millions."""

_DEEPEST = 64
"""The deepest accepted nesting of JSON lists and objects; configurations have fewer than ten levels."""

_RESTORE = "download it again"

READING = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


def local_path(model: str | Path) -> Path:
    """Expands ``~`` in a path; returns the path unchanged if the home directory is unknown."""
    try:
        return Path(model).expanduser()
    except RuntimeError:
        return Path(model)


def sha256(content: bytes) -> str:
    """Returns the SHA-256 of bytes, in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def sha256_of(path: Path) -> str:
    """Returns the SHA-256 of a file's content, read in blocks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_json(path: Path, most: int = LARGEST) -> Data:
    """Reads a JSON object from a file, with errors that name the file and the line.

    Args:
        most: the largest size in bytes.

    Raises:
        CheckpointError: the file is missing or unreadable, not a regular file, or too large.
        ConfigError: the content is not JSON, not an object, or nested too deeply.
    """
    return json_in(read_bytes(path, most), path)


def json_in(content: bytes, path: Path) -> Data:
    """Parses the content of a file, for :func:`read_json`."""
    twice: list[str] = []
    try:
        found = parse_json(content, twice=twice)
    except Damaged as error:
        raise ConfigError(f"{path} {error}; {_RESTORE}") from None
    for name in twice[:1]:
        _warn(f"{path} states {name[:60]!r} more than once; the last value counts, as in transformers")
    return found


@cache
def _warn(text: str) -> None:
    """Logs a warning once, though a file is read several times."""
    LOG.warning("%s", text)


class Damaged(ValueError):
    """An error for damaged content; its message is a predicate that follows the file's name."""


def parse_json(content: bytes, *, finite: bool = False, twice: list[str] | None = None) -> Data:
    """Parses a JSON object, in bounded time and memory.

    Args:
        finite: reject NaN and Infinity, which Python accepts although they are not JSON.
        twice: gets the keys that an object states more than once, instead of an error for them.

    Raises:
        Damaged: the content is not JSON, not an object, or nested too deeply.
    """
    repeated: list[str] = []

    def read(pairs: list[tuple[str, object]]) -> Data:
        found = dict(pairs)
        if len(found) < len(pairs):
            repeated.append(Counter(name for name, _ in pairs).most_common(1)[0][0])
        return found

    constant = _refuse_constant if finite else None
    try:
        value = json.loads(content.decode("utf-8"), parse_constant=constant, object_pairs_hook=read)
    except UnicodeDecodeError:
        raise Damaged("is not a text file") from None
    except RecursionError:
        raise Damaged("nests its brackets too deeply") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}: {error.msg}"
        raise Damaged(f"is not valid JSON ({where})") from None
    except Damaged:
        raise
    except ValueError:  # Python's limit of 4,300 digits for a whole number
        raise Damaged("contains a number of thousands of digits") from None
    if not isinstance(value, dict):
        raise Damaged(f"contains a JSON {type(value).__name__}, not an object")
    if is_deep(value):
        raise Damaged("nests its brackets too deeply")
    if twice is not None:
        twice += repeated
    elif repeated:
        raise Damaged(f"states {repeated[0][:60]!r} more than once in an object")
    return value


def _refuse_constant(word: str) -> Never:
    raise Damaged(f"contains {word}, which is not a finite number")


def is_deep(value: object) -> bool:
    """Whether lists and objects are nested more than ``_DEEPEST`` levels deep."""
    level: list[Any] = [[value]]
    for _ in range(_DEEPEST + 1):
        children = itertools.chain.from_iterable(v.values() if isinstance(v, dict) else v for v in level)
        level = [child for child in children if isinstance(child, (dict, list))]
    return bool(level)


def read_bytes(path: Path, most: int = LARGEST) -> bytes:
    """Reads a regular file of at most ``most`` bytes.

    Raises:
        CheckpointError: the file is missing or unreadable, not a regular file, or larger.
    """
    with open_regular(path) as file, translated(path, "read"):
        content = file.read(most + 1)
    if len(content) > most:
        raise Unreadable(path, f"is larger than {most / 10**6:.3g} MB, beyond any such file", _RESTORE)
    return content


def content(path: Path, most: int = LARGEST) -> bytes:
    """Returns the content of a regular file. Pipes and devices are not read, because they may never end.

    Raises:
        Damaged: the file cannot be read, is not a regular file, or is longer than ``most`` bytes.
    """
    try:
        return read_bytes(path, most)
    except Unreadable as error:
        raise Damaged(error.why) from None


def read_given(path: str | Path, option: str, most: int = LARGEST) -> str:
    """Reads a text file that an option names.

    Raises:
        DataError: as for :func:`content`, or the file is not UTF-8.
    """
    try:
        return content(local_path(path), most).decode()
    except UnicodeDecodeError:
        why = "is not UTF-8 text"
    except Damaged as error:
        why = str(error)
    raise DataError(f"{path} {why}; name another file", option)


class Unreadable(CheckpointError):
    """An error for a file that cannot be read.

    Attributes:
        why: a predicate that follows the file's name.
    """

    def __init__(self, path: Path, why: str, advice: str) -> None:
        super().__init__(f"{path} {why}; {advice}")
        self.why = why


def open_regular(path: Path) -> BinaryIO:
    """Opens a regular file for reading. Rejects pipes and devices, which could block forever.

    Raises:
        Unreadable: the file is missing or unreadable, or not a regular file.
    """
    try:
        handle = os.open(path, READING)
        mode = os.fstat(handle).st_mode
        if stat.S_ISREG(mode):
            return open(handle, "rb")
        os.close(handle)
    except FileNotFoundError:
        raise Unreadable(path, "does not exist", "complete the download, or give another folder") from None
    except (OSError, ValueError) as error:  # a null byte in the name
        why = getattr(error, "strerror", None) or error
        raise Unreadable(path, f"cannot be read: {why}", "allow reading it, or give another file") from error
    kind = "a folder" if stat.S_ISDIR(mode) else "a pipe or a device"
    raise Unreadable(path, f"is {kind}, not a regular file", "remove it, or give another folder")


@contextmanager
def translated(where: Path, what: Literal["read", "written"] = "written") -> Iterator[None]:
    """Turns an ``OSError`` in the block into a CheckpointError about ``where``."""
    try:
        yield
    except CheckpointError:
        raise
    except OSError as error:
        raise failed(f"{where} cannot be {what}", error) from error


_ADVICE = {
    errno.ENOSPC: "free some space, then run the command again",
    errno.EDQUOT: "free some space, then run the command again",
    errno.EFBIG: "raise the limit on the size of files (ulimit -f), then run the command again",
    errno.EIO: "check the disk, then run the command again",
}
"""What to do about a disk that is full or fails."""


def failed(what: str, error: OSError) -> CheckpointError:
    """Returns the error for a file or folder that cannot be written: ``what``, the reason, and what to do."""
    advice = _ADVICE.get(error.errno or 0)
    kind = StorageError if advice else CheckpointError
    return kind(f"{what}: {error.strerror or error}; {advice or 'choose another place, or allow writing there'}")


# ---------------------------------------------------------------------------------------------------------
# Writing

SUFFIX = ".ropescale"
_LOCK = "-lock"


def atomic_write(path: Path, content: bytes | str) -> None:
    """Replaces or creates a file atomically. The caller must check that an existing file may be replaced.

    Raises:
        OSError: writing failed; the old file is unchanged.
    """
    with atomic_path(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def made_folder(folder: Path) -> Iterator[list[Path]]:
    """Creates a folder and its parents, and yields those that were missing; if the block fails, removes them if empty.

    Raises:
        CheckpointError: a folder cannot be created.
    """
    made = [each for each in (folder, *folder.parents) if not os.path.lexists(each)]
    try:
        with translated(folder):
            folder.mkdir(parents=True, exist_ok=True)
        yield made
    except BaseException:
        for each in made:
            with suppress(OSError):
                each.rmdir()
        raise


def write_synced(path: Path, content: bytes) -> None:
    """Writes a file and syncs it, but not atomically. Replaces a symbolic link instead of writing to its target."""
    path.unlink(missing_ok=True)
    with open(path, "xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def atomic_path(path: Path, *, new: bool = False, check: Callable[[Path], None] | None = None) -> Iterator[Path]:
    """Yields the path of an empty temporary file, which is renamed to ``path`` at the end, or removed on failure.

    Args:
        new: never replace an existing file, even one that is created during the block.
        check: called with the path of an existing file before its replacement; raises an error to keep the file.

    Raises:
        FileExistsError: the path exists with ``new``, or was created by another process at the last moment.
        OSError: writing failed.
    """
    with hidden_path(path) as temporary:
        temporary.touch(exist_ok=False)
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        with deferred():
            if new or (check and not os.path.lexists(path)):
                _link(temporary, path)
                return
            if check:
                check(path)
            os.replace(temporary, path)


def _link(temporary: Path, path: Path) -> None:
    """Gives the temporary file its final name by a hard link, which fails if the name is taken."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        path.touch(exist_ok=False)
        os.replace(temporary, path)


def writable_file(out: str | Path, check: Callable[[Path], object]) -> Path:
    """Returns the path of a file to write, after checking that it can be written there.

    Args:
        check: called with the path of an existing file; raises CheckpointError if the file may not be replaced.

    Raises:
        CheckpointError: the path is a folder or a dangling link, its folder is missing or read-only, or ``check``
            raised.
    """
    path = local_path(out)
    try:
        with translated(path):
            if path.is_symlink():
                if not path.exists():  # a write through the link would create a file elsewhere
                    raise CheckpointError(
                        f"cannot write {path}: it is a link to nothing; remove it, or choose another file"
                    )
                path = path.resolve()
            if path.is_dir():
                raise CheckpointError(f"cannot write {out}, which is a folder; choose another file")
            folder = path.absolute().parent
            if not folder.is_dir():
                raise CheckpointError(
                    f"cannot write {out}: its folder does not exist; create it, or choose another file"
                )
            sweep_leftovers(path)
            if os.path.lexists(path):
                check(path)
            with tempfile.TemporaryFile(dir=folder):  # permissions do not reveal a read-only file system
                pass
    except (ValueError, RuntimeError) as error:
        raise CheckpointError(f"cannot write {path}: {error}") from None
    return path


def write_checked(content: bytes, out: str | Path, check: Callable[[Path], None]) -> Path:
    """Writes a file atomically and returns its path; takes ``check`` and raises errors like :func:`writable_file`."""
    path = writable_file(out, check)
    with translated(path), atomic_path(path, check=check) as temporary:
        temporary.write_bytes(content)
    return path


@contextmanager
def hidden_path(path: Path, alone: bool = False) -> Iterator[Path]:
    """Yields a hidden sibling path of ``path`` for a file or folder; removes it at the end if it still exists.

    Args:
        alone: refuse to begin while another process writes the same path.

    Raises:
        CheckpointError: another process writes it.
    """
    from filelock import FileLock

    path.absolute().parent.stat()  # raises if the folder is missing, which filelock would create
    if sweep_leftovers(path) and alone:
        raise CheckpointError(f"another command is writing {path}; wait for it, or choose another file")
    place = path.with_name(hidden_name(path.name))
    lock = FileLock(f"{place}{_LOCK}")
    try:
        with suppress(OSError, NotImplementedError):  # on a file system without locks, leftovers are not removed
            lock.acquire(timeout=1)
        yield place
    finally:
        with deferred(), suppress(OSError):
            try:
                _remove(place)
                Path(lock.lock_file).unlink(missing_ok=True)
            finally:
                lock.release()


def sweep_leftovers(path: Path, before: Callable[[Path], object] = lambda place: None) -> bool:
    """Removes the leftovers of killed writers of ``path``; only logs leftovers from other hosts or earlier boots.

    Args:
        before: called with the hidden path of each leftover before its removal.

    Returns:
        Whether another process is writing ``path``.
    """
    from filelock import FileLock, Timeout

    parent = path.absolute().parent
    pattern = re.compile(rf"(\.{re.escape(_cut(path.name))}\.([0-9a-f]{{8}})[0-9a-f]{{8}}{SUFFIX}){_LOCK}")
    names = sorted(os.listdir(parent)) if parent.is_dir() else []
    is_written = False
    for match in filter(None, map(pattern.fullmatch, names)):
        place = parent / match[1]
        lock = parent / match[0]
        if match[2] != _machine():
            LOG.warning(
                "%s was left by a command on another host, or before a restart; remove it if no such command is "
                "running",
                place,
            )
            continue
        try:
            found = lock.lstat()
            if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid():
                with FileLock(lock).acquire(timeout=0):
                    before(place)
                    _remove(place)
                    lock.unlink()
        except Timeout:
            is_written = True
        except OSError:  # the other process has removed it
            pass
    return is_written


def _remove(place: Path) -> None:
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place, ignore_errors=True)
    else:
        place.unlink(missing_ok=True)


def hidden_name(name: str) -> str:
    """Returns a hidden temporary name for ``name``, with digits that identify the host, its boot and this writer."""
    return f".{_cut(name)}.{_machine()}{secrets.token_hex(4)}{SUFFIX}"


def _cut(name: str) -> str:
    """Shortens a name so that the hidden name fits into 255 bytes."""
    return os.fsdecode(os.fsencode(name)[:200])


@cache
def _machine() -> str:
    """Returns eight digits that identify this host and its boot, or random digits if the boot is unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        return secrets.token_hex(4)
    return sha256(f"{platform.node()} {boot}".encode())[:8]


def set_aside(path: Path, note: Path | None = None) -> Path:
    """Renames a file or folder to ``NAME~``, or ``NAME~2`` and so on if that name is taken; returns the new path.

    Args:
        note: a file to write with the new name, before the renaming.
    """
    names = (path.with_name(f"{path.name}~{number if number > 1 else ''}") for number in itertools.count(1))
    aside = next(name for name in names if not os.path.lexists(name))
    if note:
        note.write_text(aside.name)
    os.rename(path, aside)
    return aside


# ---------------------------------------------------------------------------------------------------------
# Signals

_ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals that end a program, sent by ``kill``, a scheduler or a closed terminal."""


class Terminated(KeyboardInterrupt):
    """An exception for a signal that ends the command, so that cleanup runs as after Ctrl-C.

    Attributes:
        number: the signal's number.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def terminable() -> Iterator[None]:
    """Raises :class:`Terminated` on SIGTERM and SIGHUP inside the block, unless the signals are ignored (nohup).

    Has no effect outside the main thread, or in a process that a launcher started with others: the launcher ends its
    processes with SIGTERM while they wait inside the communication library, where no Python code runs.
    """
    if os.environ.get("WORLD_SIZE", "1") not in ("", "1") or not _in_main_thread():
        yield
        return
    with _handled([number for number in _ENDING if signal.getsignal(number) == signal.SIG_DFL], _terminate):
        yield


@contextmanager
def deferred() -> Iterator[None]:
    """Defers SIGINT, SIGTERM and SIGHUP until the end of the block, then raises the first signal that arrived."""
    if not _in_main_thread():  # Python handles signals only in the main thread
        yield
        return
    came: list[int] = []
    wanted = [number for number in (signal.SIGINT, *_ENDING) if signal.getsignal(number) not in (signal.SIG_IGN, None)]
    try:
        with _handled(wanted, lambda number, frame: came.append(number)):
            yield
    finally:
        if came:
            signal.raise_signal(came[0])


@contextmanager
def _handled(numbers: Sequence[int], handler: Callable[[int, object], object]) -> Iterator[None]:
    """Sets a handler for these signals in the block, and restores the old handlers even if a signal arrives."""
    with ExitStack() as stack:
        for number in numbers:
            stack.callback(signal.signal, number, signal.getsignal(number))
            signal.signal(number, handler)
        yield


def _terminate(number: int, frame: object) -> None:
    raise Terminated(number)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
