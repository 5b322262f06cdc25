"""From the text of ``key=value`` to the type that a field's annotation asks for, and the checks on values."""

from __future__ import annotations

import dataclasses
import inspect
import json
import sys
import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Union

from ..errors import ScheduleError
from ..files.reading import local_path
from ..formatting import brief
from .base import BuiltIn, Schedule, check_finite, plain

_MISSING = dataclasses.MISSING


@dataclass(frozen=True)
class Parameter:
    """A field of a schedule: its name, its annotation, and its default (``dataclasses.MISSING`` if none)."""

    name: str
    hint: Any
    default: Any

    @property
    def required(self) -> bool:
        """Whether there is no default."""
        return self.default is _MISSING


def parameters(make: Any) -> dict[str, Parameter]:
    """The fields that a schedule class, or a ready schedule, can be given; none for a function."""
    cls = make if isinstance(make, type) else type(make)
    if dataclasses.is_dataclass(cls):
        hints = _hints(cls)
        return {
            f.name: Parameter(f.name, hints.get(f.name, f.type), _default(f)) for f in dataclasses.fields(cls) if f.init
        }
    if not isinstance(make, type):
        return {}
    hints = _hints(cls.__init__)
    given = list(inspect.signature(cls.__init__).parameters.values())[1:]
    named = [p for p in given if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return {
        p.name: Parameter(p.name, hints.get(p.name, Any), _MISSING if p.default is p.empty else p.default)
        for p in named
    }


def holds_schedule(hint: Any) -> bool:
    """Whether a field of this annotation holds another schedule."""
    return hint is Schedule or (isinstance(hint, type) and issubclass(hint, BuiltIn)) or hint in ("Schedule", "BuiltIn")


def cast_text(where: str, hint: Any, text: str) -> Any:
    """``text`` as the annotation asks.

    Raises:
        ScheduleError: it cannot be read so, or it is not finite.
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
    raise ScheduleError(f"{where} must be {' or '.join(_called(member) for member in wanted)}, not {brief(text)}")


def check_value(where: str, hint: Any, value: Any) -> Any:
    """A value as Python or JSON gives it: finite, a number where one is annotated; lists become tuples if asked.

    Raises:
        ScheduleError: not finite, or not of the kind annotated.
    """
    members = _members(hint)
    if value is None and type(None) in members:
        return None
    if any(member in (float, int) or _origin(member) in (tuple, list) for member in members):
        value = plain(value)
    numeric = [member for member in members if member in (float, int)]
    if numeric and bool not in members and all(member in (float, int, type(None)) for member in members):
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ScheduleError(f"{where} must be a number, not {brief(value)}")
        check_finite(where, value)
    return tuple(value) if isinstance(value, list) and any(_origin(m) is tuple for m in members) else value


def _cast(where: str, hint: Any, text: str) -> Any:
    origin = _origin(hint)
    if origin is Literal:
        return {str(choice): choice for choice in typing.get_args(hint)}[text]
    if origin in (tuple, list, Sequence):
        return _items(where, hint, text, tuple if origin is tuple else list)
    if hint is bool:
        return {"true": True, "false": False}[text.lower()]
    if hint in (int, float):
        return _finite(where, hint(text))
    if hint is str:
        return text
    if isinstance(hint, type) and issubclass(hint, Path):
        return local_path(text)
    return _anything(where, text)


def _items(where: str, hint: Any, text: str, kind: Any) -> Any:
    from .specs import split  # which builds on this module

    if not (text.startswith("[") and text.endswith("]")):
        raise ScheduleError(f"{where} must be a list like [1,1.5,2], not {brief(text)}")
    inner = next((argument for argument in typing.get_args(hint) if argument is not Ellipsis), Any)
    return kind(cast_text(where, inner, part.strip()) for part in split(text[1:-1]) if part.strip())


def _anything(where: str, text: str) -> Any:
    """Without an annotation to go by: JSON where it reads as such, else the text."""
    try:
        value = json.loads({"none": "null", "true": "true", "false": "false"}.get(text.lower(), text))
    except (ValueError, RecursionError):
        return text
    return _finite(where, value) if isinstance(value, float) else value


def _finite(where: str, number: Any) -> Any:
    check_finite(where, number)
    return number


def _members(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in (Union, types.UnionType) else (hint,)


def _origin(hint: Any) -> Any:
    return typing.get_origin(hint) or (hint if hint in (tuple, list) else None)


def _called(hint: Any) -> str:
    known = {float: "a number", int: "a whole number", bool: "true or false"}
    if _origin(hint) is Literal:
        return " or ".join(str(choice) for choice in typing.get_args(hint))
    return known.get(hint, getattr(hint, "__name__", str(hint)))


def _default(f: dataclasses.Field[Any]) -> Any:
    return f.default_factory() if f.default_factory is not _MISSING else f.default


def _hints(owner: Any) -> dict[str, Any]:
    """Annotations as types; those that hold a name which only exists while type checking are left as text."""
    try:
        return typing.get_type_hints(owner)
    except Exception:
        scope = vars(sys.modules.get(owner.__module__, typing))
        owners = reversed(owner.__mro__) if isinstance(owner, type) else [owner]
        raw = {key: hint for each in owners for key, hint in inspect.get_annotations(each).items()}
        return {key: _evaluated(hint, scope) for key, hint in raw.items()}


def _evaluated(hint: Any, scope: dict[str, Any]) -> Any:
    try:
        return eval(hint, scope.copy()) if isinstance(hint, str) else hint
    except Exception:
        return hint
