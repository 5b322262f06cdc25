"""A request: a schedule and how to apply it; and the ways out of a refused one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypedDict, TypeVar, Unpack

from .errors import ConfigError, RopescaleError, WayOut
from .lengths import parse_length
from .output.formatting import brief
from .rope import Rope


class RequestOptions(TypedDict, total=False):
    """The keywords of :class:`Request`, for public functions that pass them on (``**options: Unpack[...]``)."""

    factor: float | None
    target_length: int | str | None
    original_length: int | str | None
    overrides: Mapping[str, str] | None
    layers: str | None
    replace_scaling: bool
    on_top: bool
    freeze_at: int | str | None


def check_keywords(function: str, options: Mapping[str, object], known: type = RequestOptions) -> None:
    """Raises a TypeError that names a public function if it has no such keyword (``**options: Unpack[known]``)."""
    for name in options:
        if name not in known.__annotations__:
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")


@dataclass(frozen=True)
class Request:
    """A schedule and how to apply it; lengths are parsed, so ``"128k"`` becomes 131072.

    Attributes:
        spec: the schedule: an object, a spec string, its JSON form, or ``{layer type: one of these}``.
        factor: the extension factor; sets the schedule's field ``factor``.
        target_length: the target context in tokens; determines the factor.
        original_length: the trained length in tokens, if the configuration states none or a wrong one.
        overrides: further fields of the schedule, as text.
        layers: ``full`` (the default), ``all`` or a layer type, for models that keep one table per layer type.
        replace_scaling: for a scaled model, replace the scaling and compute from the original length.
        on_top: compose with the existing scaling.
        freeze_at: replace a length-dependent schedule by its table at this length, in tokens.

    Raises:
        DataError: a length is invalid.
        ConfigError: ``replace_scaling`` and ``on_top`` are both given.
    """

    spec: object
    factor: float | None = None
    target_length: int | None = None
    original_length: int | None = None
    overrides: Mapping[str, str] = field(default_factory=dict)
    layers: str | None = None
    replace_scaling: bool = False
    on_top: bool = False
    freeze_at: int | None = None

    def __post_init__(self) -> None:
        for name in ("target_length", "original_length", "freeze_at"):
            length = getattr(self, name)
            object.__setattr__(self, name, None if length is None else parse_length(length))
        if not isinstance(self.layers, (str, type(None))):
            raise ConfigError(f"layers must be a name such as full or all, not {brief(self.layers)}", "layers")
        fields = self.overrides or {}
        if not isinstance(fields, Mapping):
            raise ConfigError(f"overrides must be a mapping of fields to values, not {brief(fields)}", "overrides")
        object.__setattr__(self, "overrides", {key: str(value) for key, value in fields.items()})
        if self.replace_scaling and self.on_top:
            raise ConfigError(
                "replace_scaling and on_top are mutually exclusive; choose one", "replace_scaling", "on_top"
            )

    @classmethod
    def of(cls, spec: object, **options: Unpack[RequestOptions]) -> Request:
        """Creates a request from a public function's arguments; lengths may be text such as ``"128k"``."""
        return cls(spec, **options)  # type: ignore[arg-type]  # __post_init__ parses the lengths

    def given(self) -> list[str]:
        """Returns the names of the options that differ from their defaults."""
        usual = Request(self.spec)
        return [name for name in RequestOptions.__annotations__ if getattr(self, name) != getattr(usual, name)]


# ---------------------------------------------------------------------------------------------------------
# The ways out of a refused request; each is tried before it is given

_Error = TypeVar("_Error", bound=RopescaleError)
Works = Callable[[Request], bool]
"""Whether a request is accepted."""


def frozen(length: int, rope: Rope) -> WayOut:
    """Returns the way out of a schedule that changes with the length, in tokens, beyond the trained length."""
    at = beyond(length, rope)
    return WayOut(f"freeze it at a length, such as {at}", options={"freeze_at": at})


def others(length: int) -> WayOut:
    """Returns the way out by another schedule for the same length, in tokens."""
    return WayOut("", ("yarn", "linear", "ntk"), {"target_length": length})


def beyond(length: int, rope: Rope) -> int:
    """Returns a length in tokens beyond the trained one: this one, or else twice the trained length."""
    return length if length > rope.original_length else 2 * rope.original_length


def that_work(ways: Iterable[WayOut], request: Request, works: Works) -> Iterator[WayOut]:
    """Yields the ways out of a request that work, with only those of their schedules that work."""
    bare = replace(request, factor=None, target_length=None, overrides={}, freeze_at=None)
    for way in ways:
        names = tuple(name for name in way.schedules if works(replace(bare, spec=name, **way.options)))
        if names:
            use = f"use {' or '.join(names)}"
            yield replace(way, text=f"{way.text} and {use}" if way.text else use, schedules=names)
        elif not way.schedules and works(replace(request, **way.options)):
            yield way


def advised(error: _Error, request: Request, works: Works, *more: WayOut) -> _Error:
    """Returns an error with only those ways out, of its own and more, that work."""
    fields = () if error.advice else error.fields  # the advice's own
    return type(error)(error.reason, *fields, advice=[*that_work([*error.advice, *more], request, works)])
