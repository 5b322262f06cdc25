"""Reads and checks the fields of built-in schedules and of users' own."""

import contextlib
import dataclasses
import inspect
import json
import numbers
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Union, cast

from ..errors import ScheduleError
from ..files import Data, is_number, local_path
from ..output.formatting import brief

PROVENANCE = "provenance"
"""The key in a schedule's JSON for the origin of its numbers; it is not a field."""

_MISSING = dataclasses.MISSING


@dataclass(frozen=True)
class Parameter:
    """A field of a schedule: its name, annotation, default (``dataclasses.MISSING`` if required) and limits."""

    name: str
    hint: object
    default: object
    limits: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def required(self) -> bool:
        """Whether the field has no default."""
        return self.default is _MISSING


def parameters(make: object) -> dict[str, Parameter]:
    """Returns the fields of a dataclass or its instance, or another class's constructor arguments; else empty."""
    if isinstance(make, type):
        return _parameters_of(make)
    return _parameters_of(type(make)) if dataclasses.is_dataclass(make) else {}


@lru_cache(maxsize=64)
def _parameters_of(cls: type) -> dict[str, Parameter]:
    is_dataclass = dataclasses.is_dataclass(cls)
    hints: Data = {}
    with contextlib.suppress(Exception):  # names that exist only for type checking
        hints = typing.get_type_hints(cls if is_dataclass else cls.__init__)
    known = {}
    if is_dataclass:
        for f in dataclasses.fields(cls):
            if f.init:
                default = f.default if f.default_factory is _MISSING else f.default_factory()
                known[f.name] = Parameter(f.name, hints.get(f.name, f.type), default, f.metadata)
        return known
    for p in list(inspect.signature(cls.__init__).parameters.values())[1:]:
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY):
            default = _MISSING if p.default is p.empty else p.default
            known[p.name] = Parameter(p.name, hints.get(p.name, object), default)
    return known


LARGEST = 1e100
"""The upper bound of numbers in fields; larger numbers would overflow in the formulas."""


def plain(value: object) -> object:
    """Converts numbers and arrays of numpy and torch, and lists of them, to Python numbers and lists."""
    value = value.tolist() if hasattr(value, "tolist") else value  # type: ignore[union-attr]
    if type(value) in (list, tuple):
        items = [plain(item) for item in cast("Sequence[object]", value)]
        return items if isinstance(value, list) else tuple(items)
    if not isinstance(value, numbers.Real) or isinstance(value, (int, float)):
        return value
    number = cast(float, value)  # such as a Fraction; check_value rejects numbers that are too large
    return float(number) if -LARGEST < number < LARGEST else value


def check_value(where: str, hint: object, value: object, limits: Mapping[str, float] | None = None) -> object:
    """Converts a value to its field's type: numbers to Python numbers, and lists to tuples if annotated as a tuple.

    Args:
        where: the field, for messages.
        hint: the field's annotation; values are checked if it allows only numbers, a boolean or tuples of numbers.
        limits: ``at_least`` (inclusive) and ``above`` (exclusive).

    Raises:
        ScheduleError: the value does not match the annotation, is not finite, or is out of range.
    """
    kinds = _kinds(hint)
    if value is None and type(None) in kinds:
        return None
    wanted = [kind for kind in kinds if kind is not type(None)]
    if wanted == [bool]:
        if not isinstance(value, bool):
            raise ScheduleError(f"{where} must be true or false, not {brief(value)}")
    elif all(kind in (int, float) for kind in wanted):
        value = plain(value)
        _check_number(where, value, limits or {})
        if float not in wanted:
            if not float(cast(float, value)).is_integer():
                raise ScheduleError(f"{where} must be a whole number, not {brief(value)}")
            value = int(cast(float, value))
    elif all(kind == tuple[float, ...] for kind in wanted):
        value = plain(value)
        if not isinstance(value, (list, tuple)):
            raise ScheduleError(f"{where} must be a list of numbers, one per pair, as in [1,1.5,2], not {brief(value)}")
        for item in value:
            _check_number(where, item, limits or {})
    is_tuple = isinstance(value, list) and any(typing.get_origin(kind) is tuple for kind in kinds)
    return tuple(cast("list[object]", value)) if is_tuple else value


def _check_number(where: str, value: object, limits: Mapping[str, float]) -> None:
    """Raises an error if a value is not a number, not finite, or out of range."""
    if not is_number(value):
        raise ScheduleError(f"{where} must be a number, not {brief(value)}")
    if not -LARGEST < value < LARGEST:  # larger ones would overflow in the formulas
        raise ScheduleError(f"{where} must be a number whose absolute value is below {LARGEST:g}, not {brief(value)}")
    if "at_least" in limits and value < limits["at_least"]:
        raise ScheduleError(f"{where} must be {limits['at_least']} or more, not {brief(value)}")
    if "above" in limits and value <= limits["above"]:
        raise ScheduleError(f"{where} must be greater than {limits['above']}, not {brief(value)}")


def read_text(hint: object, text: str) -> object:
    """Reads a field's value from text: JSON, unless the annotation allows text or a path.

    Numbers for a float field become floats. Text that is neither JSON nor a number is returned unchanged;
    :func:`check_value` may reject it.
    """
    kinds = _kinds(hint)
    if type(None) in kinds and text.lower() in ("none", "null"):
        return None
    if str in kinds:
        return text
    if Path in kinds:
        return local_path(text)
    value: object = text
    try:
        value = json.loads(text.lower() if text.lower() in ("true", "false", "null") else text)
    except (ValueError, RecursionError):
        if int in kinds or float in kinds:  # numbers that are not valid JSON, such as .5
            with contextlib.suppress(ValueError):
                value = float(text)
    if any(kind is float or float in typing.get_args(kind) for kind in kinds):
        return [_as_float(item) for item in value] if isinstance(value, list) else _as_float(value)
    return value


def _as_float(value: object) -> object:
    is_whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) < LARGEST
    return float(cast(int, value)) if is_whole else value


def _kinds(hint: object) -> tuple[object, ...]:
    """Returns the types that an annotation allows."""
    return typing.get_args(hint) if typing.get_origin(hint) in (Union, types.UnionType) else (hint,)
