"""Reading stored files that anybody may have changed: bounded, and every value looked at before it is used.

A *check* is a function of a value and of where it stands; it raises :class:`Wrong` where the value does not fit. What
a file must hold is put together from a few of them, see :mod:`ropescale.evals.results.formats`.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Check = Callable[[Any, str], None]

MOST = 64 * 2**20
"""Bytes of a JSON file that are read. The results of a thousand schedules take a few of them."""

_BLOCK = 2**20

_LONGEST = 2**16
"""Characters of a text."""

_LARGEST = 2**53
"""Up to here a float, and so JavaScript, counts without gaps."""


class Wrong(ValueError):
    """A file, or a value in it, that is not what it should be; says what is wrong with it."""


def content(path: Path, most: int = MOST) -> bytes:
    """What a file holds. A pipe or a device, which may have no end, is not waited for.

    Raises:
        Wrong: it is no file, or longer than ``most`` bytes.
        OSError: it cannot be read.
    """
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise Wrong("is not a regular file")
        if os.fstat(handle).st_size > most:
            raise Wrong(f"is longer than {most:,} bytes")
        found = bytearray()
        while block := file.read(_BLOCK):  # of some files the system tells no size
            found += block
            if len(found) > most:
                raise Wrong(f"is longer than {most:,} bytes")
    return bytes(found)


def parsed(path: Path, most: int = MOST) -> dict[str, Any]:
    """A JSON object from a file, without numbers that JSON does not have.

    Raises:
        Wrong: it cannot be read, or holds something else.
    """
    try:
        found = json.loads(_bounded(content(path, most)))
        json.dumps(found, allow_nan=False)
    except Wrong:
        raise
    except OSError as error:
        raise Wrong(f"cannot be read ({error.strerror or error})") from None
    except RecursionError:
        raise Wrong("cannot be read (its brackets nest too deeply)") from None
    except MemoryError:
        raise Wrong("cannot be read (it does not fit into memory)") from None
    except ValueError as error:
        raise Wrong(f"cannot be read ({_brief(str(error))})") from None
    if not isinstance(found, dict):
        raise Wrong("does not hold an object")
    return found


_MOST_BRACKETS, _BYTES_APART = 2_000_000, 8


def _bounded(found: bytes) -> bytes:
    """A text of JSON, unless it is mostly brackets, of which each takes up to a hundred bytes of memory.

    Raises:
        Wrong: it is.
    """
    if found.count(b"[") + found.count(b"{") > max(_MOST_BRACKETS, len(found) // _BYTES_APART):
        raise Wrong("holds too many lists")
    return found


def checked(path: Path, check: Check, most: int = MOST) -> dict[str, Any]:
    """A JSON object from a file, as written and with every value that ``check`` asks for.

    Raises:
        Wrong: it is not.
    """
    found = parsed(path, most)
    check(found, "")
    if not is_as_sealed(found):
        raise Wrong("is not as it was written (its checksum differs)")
    return found


# --- checksums ---

SEAL = "sha256"
"""The key of an object's own checksum."""


def sealed(found: Mapping[str, Any]) -> str:
    """An object as the text of a file, with a checksum of all the rest of it."""
    return json.dumps({**found, SEAL: _seal(found)}, indent=1, allow_nan=False) + "\n"


def is_as_sealed(found: Mapping[str, Any]) -> bool:
    """Whether an object is what was sealed, or has no seal."""
    return SEAL not in found or found[SEAL] == _seal(found)


def _seal(found: Mapping[str, Any]) -> str:
    rest = {key: value for key, value in found.items() if key != SEAL}
    return sha256(json.dumps(rest, sort_keys=True).encode())


def sha256(found: bytes) -> str:
    """In hexadecimal digits."""
    return hashlib.sha256(found).hexdigest()


# --- checks ---


def text(value: Any, where: str) -> None:
    """Any text that is not absurdly long."""
    if not isinstance(value, str) or len(value) > _LONGEST:
        raise Wrong(_said(value, where, "a text"))


def digest(value: Any, where: str) -> None:
    """A sha256."""
    if not (isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef")):
        raise Wrong(_said(value, where, "a sha256"))


def whole(low: int = 0, high: int = _LARGEST) -> Check:
    """A whole number in this range."""

    def check(value: Any, where: str) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise Wrong(_said(value, where, f"a whole number from {low:,} to {high:,}"))

    return check


def number(low: float = -math.inf, high: float = math.inf) -> Check:
    """A finite number in this range."""

    def check(value: Any, where: str) -> None:
        real = isinstance(value, float) or (isinstance(value, int) and not isinstance(value, bool))
        if not real or not abs(value) <= sys.float_info.max or not low <= value <= high:
            raise Wrong(_said(value, where, f"a finite number{_range(low, high)}"))

    return check


def _range(low: float, high: float) -> str:
    if low == -math.inf:
        return "" if high == math.inf else f" of {high:g} or less"
    return f" of {low:g} or more" if high == math.inf else f" from {low:g} to {high:g}"


def flag(value: Any, where: str) -> None:
    """True or false."""
    if not isinstance(value, bool):
        raise Wrong(_said(value, where, "true or false"))


def plain(value: Any, where: str) -> None:
    """What is only shown: a short value, or a list of such."""
    if isinstance(value, list):
        each(_scalar)(value, where)
    else:
        _scalar(value, where)


def _scalar(value: Any, where: str) -> None:
    if isinstance(value, str):
        text(value, where)
    elif value is not None and not isinstance(value, bool):
        number()(value, where)


def optional(check: Check) -> Check:
    """Null, or what the check wants."""
    return lambda value, where: None if value is None else check(value, where)


def each(check: Check, least: int = 0, most: int = 10**7) -> Check:
    """A list of what the check wants."""

    def check_all(value: Any, where: str) -> None:
        if not isinstance(value, list) or not least <= len(value) <= most:
            few = f"a list of {least:,} to {most:,}" if least or most < 10**7 else "a list"
            raise Wrong(_said(value, where, few))
        for number, one in enumerate(value):
            check(one, f"{where}[{number}]")

    return check_all


def mapping(check: Check) -> Check:
    """An object with any keys."""

    def check_all(value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise Wrong(_said(value, where, "an object"))
        for key, one in value.items():
            text(key, where)
            check(one, _inside(where, key))

    return check_all


def fields(needed: Mapping[str, Check], others: Mapping[str, Check] | None = None) -> Check:
    """An object with these keys, and perhaps the others; what else it has is nobody's business."""

    def check_all(value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise Wrong(_said(value, where, "an object"))
        for key, check in needed.items():
            if key not in value:
                raise Wrong(f"lacks {_inside(where, key)}")
            check(value[key], _inside(where, key))
        for key, check in (others or {}).items():
            if key in value:
                check(value[key], _inside(where, key))

    return check_all


def _inside(where: str, key: str) -> str:
    return _brief(f"{where}.{key}" if where else key)


def _said(value: Any, where: str, wanted: str) -> str:
    if isinstance(value, (dict, list)):
        shown = "an object" if isinstance(value, dict) else f"a list of {len(value):,}"
    else:
        shown = _brief(json.dumps(value[:200] if isinstance(value, str) else value)[:200])
    return f"has {shown} for {where or 'its whole'} and not {wanted}"


def _brief(words: str, most: int = 80) -> str:
    """Short enough to go inside a sentence, on one line."""
    words = " ".join(words.split())
    return words if len(words) <= most else f"{words[: most - 1]}…"
