"""The fields of a schedule, built-in or a user's own."""

from __future__ import annotations

import dataclasses
import inspect
import sys
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

PROVENANCE = "provenance"
"""The key in a schedule's JSON that says where its numbers come from; it is no field."""

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
        """Whether there is no default."""
        return self.default is _MISSING


def parameters(make: object) -> dict[str, Parameter]:
    """Returns the fields of a schedule class or instance; none for a function."""
    cls = make if isinstance(make, type) else type(make)
    if dataclasses.is_dataclass(cls):
        hints = _hints(cls)
        fields = [f for f in dataclasses.fields(cls) if f.init]
        return {f.name: Parameter(f.name, hints.get(f.name, f.type), _default(f), f.metadata) for f in fields}
    if not isinstance(make, type):
        return {}
    hints = _hints(cls.__init__)
    given = list(inspect.signature(cls.__init__).parameters.values())[1:]
    named = [p for p in given if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return {
        p.name: Parameter(p.name, hints.get(p.name, object), _MISSING if p.default is p.empty else p.default)
        for p in named
    }


def _default(f: dataclasses.Field[object]) -> object:
    return f.default_factory() if f.default_factory is not _MISSING else f.default


@lru_cache(maxsize=64)
def _known_hints(owner: type | Callable[..., object]) -> dict[str, object]:
    return typing.get_type_hints(owner)


def _hints(owner: type | Callable[..., object]) -> dict[str, object]:
    """Returns annotations as types; names that exist only while type checking stay text."""
    try:
        return _known_hints(owner)
    except Exception:
        scope = vars(sys.modules.get(owner.__module__, typing))
        owners = reversed(owner.__mro__) if isinstance(owner, type) else [owner]
        raw = {key: hint for each in owners for key, hint in inspect.get_annotations(each).items()}
        return {key: _evaluated(hint, scope) for key, hint in raw.items()}


def _evaluated(hint: object, scope: Mapping[str, object]) -> object:
    try:
        return eval(hint, dict(scope)) if isinstance(hint, str) else hint
    except Exception:
        return hint
