"""Reads stored JSON files, with a size limit and a checksum that detects changes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from annotated_types import Interval

from ..files import Damaged, Data, Json, content, parse_json, sha256

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")

Parsed = Mapping[str, Any]
"""A part of results.json."""

MOST = 64 * 2**20
"""The default size limit of JSON files, in bytes. The results of a thousand schedules take a few megabytes."""


def parsed(path: Path, most: int = MOST) -> Data:
    """Reads a JSON object from a file. NaN and infinity are not allowed.

    Raises:
        Damaged: the file cannot be read, or does not contain a JSON object.
    """
    return parse_json(content(path, most), finite=True)


# --- checksums ---

SEAL = "sha256"
"""The key of the checksum in a stored object."""


def sealed(found: Json) -> str:
    """Returns an object as JSON text, with a checksum of all other keys and values added."""
    return json.dumps({**found, SEAL: _seal(found)}, indent=1, allow_nan=False) + "\n"


def unsealed(path: Path) -> Data:
    """Reads a JSON object that :func:`sealed` wrote.

    Raises:
        Damaged: the file cannot be read, or was changed after it was written.
    """
    found = parsed(path)
    if found.get(SEAL) != _seal(found):
        raise Damaged("was changed or damaged (its checksum differs)")
    return found


def _seal(found: Json) -> str:
    rest = {key: value for key, value in found.items() if key != SEAL}
    return sha256(json.dumps(rest, sort_keys=True).encode())


# --- types ---

Length = Annotated[int, Interval(ge=1, le=2**40)]
"""A context length in tokens."""

Count = Annotated[int, Interval(ge=0, le=2**53)]
"""A count that a float, and therefore a number in JavaScript, represents exactly."""

Share = Annotated[float, Interval(ge=0, le=1)]


def fitting(value: T, kind: object) -> T:
    """Validates a value strictly with pydantic. Keys that a typed dict does not declare are allowed.

    Raises:
        Damaged: a value does not fit; the message names the first one.
    """
    from pydantic import ValidationError

    try:
        _adapter(kind).validate_python(value)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise Damaged(f"has a wrong value{f' in {place[:80]!r}' if place else ''}: {first['msg']}") from None
    return value


@cache
def _adapter(kind: object) -> TypeAdapter[object]:
    """Returns the validator of a type. Building it takes a hundred times as long as a validation, so it is cached."""
    from pydantic import ConfigDict, TypeAdapter, with_config

    return TypeAdapter(with_config(ConfigDict(strict=True, allow_inf_nan=False))(kind))  # type: ignore[type-var]
