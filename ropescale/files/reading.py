"""Reads files that may be hostile: bounded in size and depth, and never from a pipe or a device."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Literal

from ..errors import CheckpointError, ConfigError
from ..output.formatting import size


def local_path(model: str | Path) -> Path:
    """Expands ``~`` in a path, where there is such a home."""
    try:
        return Path(model).expanduser()
    except RuntimeError:
        return Path(model)


def sha256(content: bytes) -> str:
    """Hashes bytes, in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def sha256_of(path: Path) -> str:
    """Hashes a file's content, read in blocks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_json(path: Path, most: int | None = None) -> dict[str, object]:
    """Reads a JSON object from a file, with errors that name the file and the line.

    Args:
        most: the largest size in bytes; what fits files of this name where it is not given, :data:`LARGEST` at most.

    Raises:
        CheckpointError: the file is missing or cannot be read, is no regular file, or is too large.
        ConfigError: it is not JSON, not an object, nested too deeply, or holds too many values.
    """
    fitting = min(_LARGEST_OF.get(path.name, LARGEST), LARGEST)
    content = read_bytes(path, fitting if most is None else most)
    try:
        if content.count(b"[") + content.count(b"{") + content.count(b",") > MOST_VALUES:
            raise Damaged(f"holds more than {MOST_VALUES:,} values, and no such file does")
        return parse_json(content)
    except Damaged as error:
        raise ConfigError(f"{path} {error}; {_RESTORE}") from None


_RESTORE = "restore it from where it was downloaded"


_LARGEST_OF = {
    "generation_config.json": 16 * 2**20,
    "params.json": 16 * 2**20,
    "tokenizer_config.json": 32 * 2**20,
}
"""Bytes; the first two have some hundreds. A tokenizer with 100,000 added tokens has 20 million."""

MOST_VALUES = 4_000_000
"""Brackets and commas in a JSON file; every value takes one, and up to a hundred bytes of memory. The index of a model
with a million tensors has a million."""


class Damaged(ValueError):
    """Damaged content; the message is the end of a sentence about the file."""


def parse_json(content: bytes) -> dict[str, object]:
    """Parses a JSON object, in bounded time and memory.

    Raises:
        Damaged: it is not JSON, not an object, or nested too deeply.
    """
    try:
        value = json.loads(content.decode("utf-8"))
    except UnicodeDecodeError:
        raise Damaged("is not a text file") from None
    except RecursionError:
        raise Damaged("nests its brackets too deeply") from None
    except MemoryError:
        raise Damaged("does not fit into memory") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}: {error.msg}"
        raise Damaged(f"is not valid JSON ({where})") from None
    except ValueError:  # what Python says of a whole number of more than 4,300 digits
        raise Damaged("holds a number of thousands of digits") from None
    if not isinstance(value, dict):
        raise Damaged(f"holds a JSON {type(value).__name__}, not an object")
    if is_deep(value):
        raise Damaged("nests its brackets too deeply")
    return value


def is_deep(value: object) -> bool:
    """Whether lists and objects are nested deeper than in any configuration."""
    inner = [value]
    for _ in range(_DEEPEST):
        inner = [item for each in inner for item in _containers(each)]
    return bool(inner)


def _containers(value: object) -> list[object]:
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [item for item in items if isinstance(item, (dict, list))]


_DEEPEST = 64
"""Brackets inside one another; configurations have fewer than ten."""

# ---------------------------------------------------------------------------------------------------------
# Files

LARGEST = 64 * 2**20
"""Bytes of a file that is read as a whole; configurations have some thousands, tokenizers some millions."""


def read_bytes(path: Path, most: int | None = None) -> bytes:
    """Reads a regular file.

    Args:
        most: the largest size in bytes; :data:`LARGEST` where it is not given.

    Raises:
        CheckpointError: it is missing or cannot be read, is no regular file, or is larger.
    """
    limit = LARGEST if most is None else most
    with open_regular(path) as file, translated(path, "read"):
        content = up_to(file, limit)
    if content is None:
        raise CheckpointError(f"{path} is larger than {size(limit)}, and no such file is; {_RESTORE}")
    return content


def up_to(file: BinaryIO, limit: int) -> bytes | None:
    """Returns the rest of a file; None where that is more than ``limit`` bytes, whatever its size was said to be."""
    stated = os.fstat(file.fileno()).st_size
    content = file.read(stated + 1) if stated <= limit else b""
    if len(content) > stated:  # it grows, or is one of those that the system makes up as they are read
        content += file.read(limit + 1 - len(content))
    return content if stated <= limit and len(content) <= limit else None


def open_regular(path: Path) -> BinaryIO:
    """Opens a file for reading, unless it is a pipe or a device, which could block for ever.

    Raises:
        CheckpointError: it is missing or cannot be read, is no regular file, or leads to one of the system's.
    """
    try:
        _refuse_special(path, os.stat(path).st_mode)  # before it is opened, which some devices notice
        refuse_system(path)
        handle = os.open(path, READING)
        try:
            _refuse_special(path, os.fstat(handle).st_mode)
            return open(handle, "rb")
        except BaseException:
            os.close(handle)
            raise
    except CheckpointError:
        raise
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist; complete the download, or give another folder") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # a null byte in the name
        raise CheckpointError(f"{path} cannot be read: {error}") from None


READING = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


def _refuse_special(path: Path, mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise CheckpointError(f"{path} cannot be read: Is a directory")
    if not stat.S_ISREG(mode):
        kind = "a pipe" if stat.S_ISFIFO(mode) else "a socket" if stat.S_ISSOCK(mode) else "a device"
        raise CheckpointError(f"{path} is {kind}, not a regular file; remove it, or give another folder")


_SYSTEM = re.compile(r"/(proc|sys|dev(?!/shm(/|$)))(/|$)")
"""Folders of files that the system makes up, or waits for, as they are read; ``/dev/shm`` is memory for anybody's."""


def refuse_system(path: Path) -> None:
    """Refuses a link into a system folder; some files there look regular and have no end.

    Raises:
        CheckpointError: names it.
    """
    real = os.path.realpath(path)
    if _SYSTEM.match(real) and not _SYSTEM.match(os.path.abspath(path)):
        raise CheckpointError(f"{path} is a link to {real}, which is the system's and no model's; remove it")


def refuse_special_files(folder: Path) -> None:
    """Refuses a checkpoint with a pipe, a device or a system file, before other code reads it.

    Raises:
        CheckpointError: names it.
    """
    with translated(folder, "read"):
        for entry in os.scandir(folder):
            path = Path(entry.path)
            if os.path.exists(path) and not os.path.isdir(path):
                _refuse_special(path, os.stat(path).st_mode)
                refuse_system(path)


@contextmanager
def translated(where: Path, what: Literal["read", "written"] = "written") -> Iterator[None]:
    """Turns an error of the operating system on files below ``where`` into a CheckpointError."""
    try:
        yield
    except CheckpointError:
        raise
    except OSError as error:
        elsewhere = f" ({error.filename})" if _is_elsewhere(error.filename, where) else ""
        raise CheckpointError(f"{where} cannot be {what}: {error.strerror or error}{elsewhere}") from error


def _is_elsewhere(name: object, where: Path) -> bool:
    """Whether the file that failed lies elsewhere, so that the message must name it."""
    return isinstance(name, str) and not (name.startswith(str(where)) or f".{where.name[:200]}." in name)
