"""Reads untrusted stored files: with a size limit, and every value validated before use.

:mod:`ropescale.evals.results.folder` defines the files' types; pydantic validates them.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

from annotated_types import Ge, Interval

from ..files import READING, parse_json, sha256, up_to
from ..files import Damaged as Wrong

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

T = TypeVar("T")

MOST = 64 * 2**20
"""The largest JSON file that is read, in bytes. The results of a thousand schedules take a few megabytes."""


def content(path: Path, most: int = MOST) -> bytes:
    """Returns the content of a file. Refuses pipes and devices, which may never end.

    Raises:
        Wrong: it is not a regular file, or is longer than ``most`` bytes.
        OSError: it cannot be read.
    """
    handle = os.open(path, READING)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise Wrong("is not a regular file")
        found = up_to(file, most)
    if found is None:
        raise Wrong(f"is longer than {most:,} bytes")
    return found


def parsed(path: Path, most: int = MOST) -> dict[str, object]:
    """Reads a JSON object from a file; NaN and infinity are refused.

    Raises:
        Wrong: it cannot be read, or is not a JSON object.
    """
    try:
        text = content(path, most)
        if text.count(b"[") + text.count(b"{") > max(_MOST_BRACKETS, len(text) // _BYTES_APART):
            raise Wrong("holds too many lists")
        found = parse_json(text)
        json.dumps(found, allow_nan=False)
    except OSError as error:
        raise Wrong(f"cannot be read ({error.strerror or error})") from None
    except MemoryError:
        raise Wrong("does not fit into memory") from None
    except ValueError as error:
        raise error if isinstance(error, Wrong) else Wrong("holds a number that is not finite") from None
    return found


_MOST_BRACKETS, _BYTES_APART = 2_000_000, 8
"""Limits on brackets of a JSON text, absolute or per bytes; a bracket can take a hundred bytes of memory."""


def checked(path: Path, check: Callable[[Any], T], most: int = MOST) -> T:
    """Reads a JSON object from a file, and checks its values and its checksum.

    Raises:
        Wrong: the file is damaged, or ``check`` refuses it.
    """
    found = parsed(path, most)
    fitting = check(found)
    if not is_as_sealed(found):
        raise Wrong("is not as it was written (its checksum differs)")
    return fitting


# --- checksums ---

SEAL = "sha256"
"""The key of an object's own checksum."""


def sealed(found: Mapping[str, object]) -> str:
    """Returns an object as the text of a file, with a checksum of all its other keys."""
    return json.dumps({**found, SEAL: _seal(found)}, indent=1, allow_nan=False) + "\n"


def is_as_sealed(found: Mapping[str, object]) -> bool:
    """Whether the checksum of an object is right."""
    return found.get(SEAL) == _seal(found)


def _seal(found: Mapping[str, object]) -> str:
    rest = {key: value for key, value in found.items() if key != SEAL}
    return sha256(json.dumps(rest, sort_keys=True).encode())


# --- ranges ---

Length = Annotated[int, Interval(ge=1, le=2**40)]
"""A context length in tokens."""

Count = Annotated[int, Interval(ge=0, le=2**53)]
"""A count that a float, and so JavaScript, represents exactly."""

Share = Annotated[float, Interval(ge=0, le=1)]
Positive = Annotated[float, Ge(0)]


# --- shapes ---


class Shape(Generic[T]):
    """A type that a file must fit. Calling it checks a value and returns it.

    Args:
        kind: the type, which pydantic checks strictly; other keys of an object are not checked.
    """

    def __init__(self, kind: object) -> None:
        self._kind = kind

    @cached_property
    def _adapter(self) -> TypeAdapter[T]:
        from pydantic import ConfigDict, TypeAdapter, with_config

        return TypeAdapter(with_config(ConfigDict(strict=True, allow_inf_nan=False))(self._kind))  # type: ignore[type-var]

    def __call__(self, value: T) -> T:
        """Returns the value if it fits.

        Raises:
            Wrong: names the first value that does not fit.
        """
        from pydantic import ValidationError

        try:
            self._adapter.validate_python(value)
        except ValidationError as error:
            raise Wrong(_first(error)) from None
        return value


def _first(error: ValidationError) -> str:
    """Returns a message with the first wrong value, its place, and the type it should have."""
    first = error.errors(include_url=False, include_context=False)[0]
    where = _brief("".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in first["loc"]).lstrip("."))
    if first["type"] == "missing":
        return f"lacks {where}"
    value, wanted = first["input"], first["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    if isinstance(value, (dict, list)):
        shown = "an object" if isinstance(value, dict) else f"a list of {len(value):,}"
    else:
        shown = _brief(json.dumps(value[:200] if isinstance(value, str) else value)[:200])
    return f"has {shown} for {where or 'its whole'} and not {wanted}"


def _brief(words: str) -> str:
    """Shortens a text so that it fits on one line inside a sentence."""
    words = " ".join(words.split())
    return words if len(words) <= 80 else f"{words[:79]}…"
