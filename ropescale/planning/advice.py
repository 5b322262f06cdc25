"""The ways out of a refused request; each is tried before it is given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TypeVar

from ..errors import RopescaleError, WayOut
from ..request import Request
from ..rope import Rope

_Error = TypeVar("_Error", bound=RopescaleError)
Works = Callable[[Request], bool]
"""Whether a request is accepted."""


def frozen(length: int, rope: Rope) -> WayOut:
    """Returns the way out of a schedule that changes with the length, in tokens, beyond the trained length."""
    at = length if length > rope.original_length else 2 * rope.original_length
    return WayOut(f"freeze it at a length, such as {at}", options={"freeze_at": at})


def others(length: int) -> WayOut:
    """Returns the way out by another schedule for the same length, in tokens."""
    return WayOut("", ("yarn", "linear", "ntk"), {"target_length": length})


def that_work(ways: Iterable[WayOut], request: Request, works: Works) -> Iterator[WayOut]:
    """Yields the ways out of a request that work, with only those of their schedules that work."""
    bare = replace(request, factor=None, target_length=None, overrides={}, freeze_at=None)
    for way in ways:
        names = tuple(name for name in way.schedules if works(replace(bare, spec=name, **way.options)))
        if names:
            yield replace(way, text=way.text or f"use {' or '.join(names)}", schedules=names)
        elif not way.schedules and works(replace(request, **way.options)):
            yield way


def advised(error: _Error, request: Request, works: Works, *more: WayOut) -> _Error:
    """Returns an error with only those ways out, of its own and more, that work."""
    fields = () if error.advice else error.fields  # the advice's own
    return type(error)(error.reason, *fields, advice=[*that_work([*error.advice, *more], request, works)])
