"""Fields of built-in and users' schedules."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import json
import math
import numbers
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal, Union, cast

from ..errors import ScheduleError
from ..files import local_path
from ..lengths import is_plain
from ..output.formatting import brief

PROVENANCE = "provenance"
"""The key in a schedule's JSON for the origin of its numbers; it is not a field."""

_MISSING = dataclasses.MISSING


@dataclass(frozen=True)
class Parameter:
    """A field of a schedule: its name, annotation, default (``dataclasses.MISSING`` if none) and limits."""

    name: str
    hint: object
    default: object
    limits: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def required(self) -> bool:
        """Whether the field has no default."""
        return self.default is _MISSING


def parameters(make: object) -> dict[str, Parameter]:
    """Returns the fields of a schedule class or instance; none for a function."""
    cls = make if isinstance(make, type) else type(make)
    if dataclasses.is_dataclass(cls):
        hints = _hints(cls)
        fields = [f for f in dataclasses.fields(cls) if f.init]
        defaults = {f.name: f.default if f.default_factory is _MISSING else f.default_factory() for f in fields}
        return {f.name: Parameter(f.name, hints.get(f.name, f.type), defaults[f.name], f.metadata) for f in fields}
    if not isinstance(make, type):
        return {}
    hints = _hints(cls.__init__)
    given = list(inspect.signature(cls.__init__).parameters.values())[1:]
    named = [p for p in given if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return {
        p.name: Parameter(p.name, hints.get(p.name, object), _MISSING if p.default is p.empty else p.default)
        for p in named
    }


@lru_cache(maxsize=64)
def _known_hints(owner: type | Callable[..., object]) -> dict[str, object]:
    return typing.get_type_hints(owner)


def _hints(owner: type | Callable[..., object]) -> dict[str, object]:
    """Returns annotations as types; names that exist only for type checking stay text."""
    try:
        return _known_hints(owner)
    except Exception:
        scope = vars(sys.modules.get(owner.__module__, typing))
        owners = reversed(owner.__mro__) if isinstance(owner, type) else [owner]
        raw = {key: hint for each in owners for key, hint in inspect.get_annotations(each).items()}
        for key, hint in raw.items():
            with contextlib.suppress(Exception):
                raw[key] = eval(hint, dict(scope)) if isinstance(hint, str) else hint
        return raw


LARGEST = 1e100
"""The upper bound of fields, frequencies and scales; larger numbers would overflow in the formulas."""

_NUMBERS = (float, int)


def plain(value: object) -> object:
    """Converts numbers and arrays of numpy and torch, and lists of them, to Python numbers and lists."""
    value = value.tolist() if hasattr(value, "tolist") else value  # type: ignore[union-attr]
    if type(value) in (list, tuple):
        items = [plain(item) for item in cast("Sequence[object]", value)]
        return items if isinstance(value, list) else tuple(items)
    if not isinstance(value, numbers.Real) or isinstance(value, (int, float)):
        return value
    number = cast(float, value)  # such as a Fraction; one too large for a float is refused later
    return float(number) if -LARGEST < number < LARGEST else value


def check_value(where: str, hint: object, value: object, limits: Mapping[str, float] | None = None) -> object:
    """Returns a value in its field's form: Python numbers, and tuples for lists if annotated.

    Args:
        where: the field, for messages.
        hint: its annotation; numbers, booleans and tuples of numbers are checked against it.
        limits: ``at_least`` (inclusive) and ``above`` (exclusive).

    Raises:
        ScheduleError: the value does not match the annotation, is not finite, or is out of range.
    """
    members = _members(hint)
    wanted = [member for member in members if member is not type(None)]
    if value is None and len(wanted) < len(members):
        return None
    if any(member in _NUMBERS or _origin(member) in (tuple, list) for member in wanted):
        value = plain(value)
    if wanted == [bool] and not isinstance(value, bool):
        raise ScheduleError(f"{where} must be true or false, not {brief(value)}")
    if all(member in _NUMBERS for member in wanted):
        check_number(where, value, limits or {})
        if float not in wanted and not float(cast(float, value)).is_integer():
            raise ScheduleError(f"{where} must be a whole number, not {brief(value)}")
    if all(_origin(member) is tuple and set(typing.get_args(member)) == {float, ...} for member in wanted):
        if not isinstance(value, (list, tuple)):
            raise ScheduleError(f"{where} must be a list of numbers, one per pair, not {brief(value)}")
        for item in value:
            check_number(where, item, limits or {})
    return tuple(value) if isinstance(value, list) and any(_origin(member) is tuple for member in wanted) else value


def check_number(where: str, value: object, limits: Mapping[str, float]) -> None:
    """Refuses a value that is not a number, not finite, or out of range."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ScheduleError(f"{where} must be a number, not {brief(value)}")
    _finite(where, value)
    if "at_least" in limits and value < limits["at_least"]:
        raise ScheduleError(f"{where} must be {limits['at_least']} or more, not {brief(value)}")
    if "above" in limits and value <= limits["above"]:
        raise ScheduleError(f"{where} must be greater than {limits['above']}, not {brief(value)}")


def _finite(where: str, value: float) -> float:
    """Returns a number; refuses NaN, infinities, and numbers that would overflow in the formulas."""
    if -LARGEST < value < LARGEST:
        return value
    wanted = "a finite number" if value != value or abs(value) == math.inf else f"a number below {LARGEST:g} in size"
    raise ScheduleError(f"{where} must be {wanted}, not {brief(value)}")


def cast_text(where: str, hint: object, text: str) -> object:
    """Parses a text by the field's annotation.

    Raises:
        ScheduleError: the text does not fit, or is not finite.
    """
    members = _members(hint)
    if type(None) in members and text.lower() in ("none", "null"):
        return None
    wanted = [member for member in members if member is not type(None)]
    for member in wanted:
        try:
            return _cast(where, member, text)
        except ScheduleError:
            raise
        except (ValueError, KeyError):
            continue
    words: list[str] = []
    for member in wanted:
        choices = typing.get_args(member) if _origin(member) is Literal else ()
        name = getattr(member, "__name__", str(member))
        words += map(str, choices) if choices else [_KINDS.get(name, name)]
    raise ScheduleError(f"{where} must be {' or '.join(words)}, not {brief(text)}")


_KINDS = {"float": "a number", "int": "a whole number", "bool": "true or false"}
"""Words for types, by their names."""


def _cast(where: str, hint: object, text: str) -> object:
    origin = _origin(hint)
    if origin is Literal:
        return {str(choice): choice for choice in typing.get_args(hint)}[text]
    if origin in (tuple, list, Sequence):
        if not (text.startswith("[") and text.endswith("]")):
            raise ScheduleError(f"{where} must be a list like [1,1.5,2], not {brief(text)}")
        inner = next((argument for argument in typing.get_args(hint) if argument is not Ellipsis), object)
        items = [cast_text(where, inner, part.strip()) for part in split(text[1:-1]) if part.strip()]
        return tuple(items) if origin is tuple else items
    if hint is bool:
        return {"true": True, "false": False}[text.lower()]
    if hint is int or hint is float:
        if not is_plain(text):
            raise ValueError(text)
        return _finite(where, int(text) if hint is int else float(text))
    if hint is str:
        return text
    if isinstance(hint, type) and issubclass(hint, Path):
        return local_path(text)
    try:  # without an annotation: JSON if possible, else text
        value = json.loads({"none": "null", "true": "true", "false": "false"}.get(text.lower(), text))
    except (ValueError, RecursionError):
        return text
    return _finite(where, value) if isinstance(value, float) else value


def split(text: str) -> list[str]:
    """Splits at the commas outside ``[]``, ``{}``, ``()`` and double quotes."""
    parts, depth, quoted = [""], 0, False
    for character in text:
        quoted ^= character == '"'
        depth += 0 if quoted else (character in "[{(") - (character in "]})")
        if character == "," and depth == 0 and not quoted:
            parts.append("")
        else:
            parts[-1] += character
    if depth or quoted:
        raise ScheduleError(f"a bracket or a quote in {brief(text)} is not closed")
    return parts


def _members(hint: object) -> tuple[object, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in (Union, types.UnionType) else (hint,)


def _origin(hint: object) -> object:
    return typing.get_origin(hint) or (hint if hint in (tuple, list) else None)
