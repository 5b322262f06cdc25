"""Where a model comes from: a local folder, or a Hub id through huggingface_hub's cache."""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import CheckpointError, ConfigError
from ..formatting import size


def local_path(model: str | Path) -> Path:
    """A path with ``~`` expanded, where there is such a home."""
    try:
        return Path(model).expanduser()
    except RuntimeError:
        return Path(model)


def read_json(path: Path, most: int | None = None) -> dict[str, Any]:
    """A JSON object from a file, with errors that name the file and the line.

    Args:
        most: the largest size in bytes; what fits files of this name where it is not given, :data:`LARGEST` at most.

    Raises:
        CheckpointError: the file is missing or cannot be read, is no regular file, or is too large.
        ConfigError: it is not JSON, not an object, nested too deeply, or holds too many values.
    """
    fitting = min(_LARGEST_OF.get(path.name, LARGEST), LARGEST)
    value = _parsed(read_bytes(path, fitting if most is None else most), path)
    if not isinstance(value, dict):
        raise ConfigError(f"{path} holds a JSON {type(value).__name__}, not an object; {_RESTORE}")
    if is_deep(value):
        raise ConfigError(f"{path} nests its brackets too deeply; {_RESTORE}")
    return value


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


def _parsed(content: bytes, path: Path) -> Any:
    if content.count(b"[") + content.count(b"{") + content.count(b",") > MOST_VALUES:
        raise ConfigError(f"{path} holds more than {MOST_VALUES:,} values, and no such file does; {_RESTORE}")
    try:
        return json.loads(content.decode("utf-8"))
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not a text file; {_RESTORE}") from None
    except RecursionError:
        raise ConfigError(f"{path} nests its brackets too deeply; {_RESTORE}") from None
    except MemoryError:
        raise ConfigError(f"{path} does not fit into memory; {_RESTORE}") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}: {error.msg}"
        raise ConfigError(f"{path} is not valid JSON ({where}); {_RESTORE}") from None
    except ValueError:  # what Python says of a whole number of more than 4,300 digits
        raise ConfigError(f"{path} holds a number of thousands of digits; {_RESTORE}") from None


def is_deep(value: Any) -> bool:
    """Whether lists and objects stand inside one another deeper than in any configuration, and than code can walk."""
    inner = [value]
    for _ in range(_DEEPEST):
        inner = [item for each in inner for item in _items(each) if isinstance(item, (dict, list))]
        if not inner:
            return False
    return True


_DEEPEST = 64
"""Brackets inside one another; configurations have fewer than ten."""


def _items(value: Any) -> Any:
    return value.values() if isinstance(value, dict) else value


# ---------------------------------------------------------------------------------------------------------
# Reading files that somebody else may have made

LARGEST = 64 * 2**20
"""Bytes of a file that is read as a whole; configurations have some thousands, tokenizers some millions."""


def read_bytes(path: Path, most: int | None = None) -> bytes:
    """The content of a regular file.

    Args:
        most: the largest size in bytes; :data:`LARGEST` where it is not given.

    Raises:
        CheckpointError: it is missing or cannot be read, is no regular file, or is larger.
    """
    limit = LARGEST if most is None else most
    with open_regular(path) as file:
        try:
            content = _up_to(file, limit)
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    if content is None:
        raise CheckpointError(
            f"{path} is larger than {size(limit)}, and no such file is; restore it from where it was downloaded"
        )
    return content


def _up_to(file: BinaryIO, limit: int) -> bytes | None:
    """The rest of a file; None where that is more than ``limit`` bytes, whatever its size was said to be."""
    stated = os.fstat(file.fileno()).st_size
    content = file.read(stated + 1) if stated <= limit else b""
    if len(content) > stated:  # it grows, or is one of those that the system makes up as they are read
        content += file.read(limit + 1 - len(content))
    return content if stated <= limit and len(content) <= limit else None


def open_regular(path: Path) -> BinaryIO:
    """Opens a file for reading, unless it is a pipe or a device, which would keep whoever reads it for ever.

    Raises:
        CheckpointError: it is missing or cannot be read, is no regular file, or leads to one of the system's.
    """
    try:
        _refuse_special(path, os.stat(path).st_mode)  # before it is opened, which some devices notice
        refuse_system(path)
        handle = os.open(path, _READING)
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


_READING = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


def _refuse_special(path: Path, mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise CheckpointError(f"{path} cannot be read: Is a directory")
    if not stat.S_ISREG(mode):
        raise CheckpointError(f"{path} is {_kind(mode)}, not a regular file; remove it, or give another folder")


def _kind(mode: int) -> str:
    return "a pipe" if stat.S_ISFIFO(mode) else "a socket" if stat.S_ISSOCK(mode) else "a device"


_SYSTEM = re.compile(r"/(proc|sys|dev(?!/shm(/|$)))(/|$)")
"""Folders of files that the system makes up, or waits for, as they are read; ``/dev/shm`` is memory for anybody's."""


def refuse_system(path: Path) -> None:
    """Raises where a path is a link into a folder of the system's own; some files there look regular and have no end.

    Raises:
        CheckpointError: names it.
    """
    real = os.path.realpath(path)
    if _SYSTEM.match(real) and not _SYSTEM.match(os.path.abspath(path)):
        raise CheckpointError(f"{path} is a link to {real}, which is the system's and no model's; remove it")


def refuse_special_files(folder: Path) -> None:
    """Refuse where a file of a checkpoint, which others' code is about to read, is a pipe, a device or the system's.

    Raises:
        CheckpointError: names it.
    """
    try:
        for entry in os.scandir(folder):
            path = Path(entry.path)
            if os.path.exists(path) and not os.path.isdir(path):
                _refuse_special(path, os.stat(path).st_mode)
                refuse_system(path)
    except CheckpointError:
        raise
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be read: {error.strerror or error}") from error
