"""Parses schedule specs: a schedule on one line, in JSON or as a Python object.

A spec is one of:

* ``NAME[:key=value,...]``, where NAME is a registered name, ``path/to/file.py::Class``, ``package.module::Class`` or
  ``path/to/factors.json``;
* a JSON object ``{"name": "yarn", "factor": 8}``, inline or in a file;
* ``{"full_attention": SPEC, ...}``, with a schedule per layer type;
* a schedule itself.
"""

from __future__ import annotations

import json
import re
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, is_dataclass, replace
from functools import cached_property, partial
from inspect import isroutine
from typing import TypeGuard, cast

from ..errors import ConfigError, ScheduleError
from ..files import Data, Json, is_number, local_path, sha256
from ..output.formatting import brief, listed, suggest
from ..rope import Rope
from .base import BuiltIn, Schedule, build, label_of, lookup
from .fields import PROVENANCE, Parameter, check_value, parameters, read_text
from .user_code import load, load_json, read_json_object

_WORD = re.compile(r"[\w-]+(?=:[^:\\/]|:?$)")  # a name, and not the drive of a Windows path
_FILE = re.compile(r"(?P<name>.*?\.py(?:::\w*)?|[\w.]+::\w*|.*?\.json)(?::(?P<fields>.*))?", re.DOTALL)
_LONG = 8
_OTHER_NAMES = {"default": "base", "mrope": "base", "su": "longrope"}  # schedules by the rope type that differs


@dataclass(frozen=True)
class Spec:
    """A schedule's class with the fields given so far; :meth:`build` creates the schedule.

    Attributes:
        make: the class, or the schedule object itself if none of its fields was changed.
        fields: the given values, converted to the types of the fields; an inner schedule is a Spec.
        named: the name that the user gave.
        file: the ``.json`` file that the spec was read from, as named by the user.
    """

    make: type | Schedule
    fields: Json = field(default_factory=dict)
    named: str = ""
    file: str = field(default="", compare=False)

    @classmethod
    def of(cls, schedule: Schedule) -> Spec:
        """Returns the Spec of a schedule object, with its non-default fields."""
        changed = {known.name: value for known, value in _held(schedule) if _differs(value, known.default)}
        for key, value in changed.items():
            if _is_schedule(value):
                changed[key] = cls.of(value)
        return cls(schedule, changed)

    @property
    def label(self) -> str:
        """The name for messages: the registered name, or the name of the class or function."""
        return label_of(self.make)

    @cached_property
    def given(self) -> Data:
        """The given values; the fields of an inner schedule follow its name."""
        flat: Data = {}
        for key, value in self.fields.items():
            flat |= {key: value._name, **value.given} if isinstance(value, Spec) else {key: value}
        return flat

    @cached_property
    def known(self) -> dict[str, Parameter]:
        """The fields of the schedule and of its inner schedule, by name."""
        inner = [value.known for value in self.fields.values() if isinstance(value, Spec)]
        return {**dict(ChainMap(*inner)), **parameters(self.make)}

    @property
    def text(self) -> str:
        """The spec on one line."""
        given = ",".join(f"{key}={_word(value)}" for key, value in self.given.items())
        return f"{self._name}:{given}" if given else self._name

    @property
    def exact(self) -> str:
        """The spec in the form that ``--schedule`` accepts: on one line, or with a long list as JSON."""
        if any(isinstance(value, (list, tuple)) and len(value) > _LONG for value in self.given.values()):
            return json.dumps({"name": self._name, **self.given})
        return self.text

    @property
    def _name(self) -> str:
        return self.named if self.named and isinstance(self.make, type) else self.label

    def plainest(self) -> Spec:
        """Returns the spec with its registered name and only the non-default fields, in the order of the class."""
        known = parameters(self.make)
        given = ((key, self.fields[key]) for key in known if key in self.fields)
        changed = {key: value for key, value in given if _differs(value, known[key].default)}
        inner = {key: value.plainest() for key, value in changed.items() if isinstance(value, Spec)}
        return replace(self, fields=changed | inner, named="")

    @cached_property
    def identity(self) -> tuple[object, str]:
        """A value that is equal for all spellings of the same schedule."""
        kind = type(self.make) if is_dataclass(self.make) and not isinstance(self.make, type) else self.make
        return self.named if "::" in self.named else kind, self.plainest().text

    def lacks(self, key: str) -> bool:
        """Whether the field exists and was not given. A default of 1 counts as given, because it means no extension."""
        return key in self.known and self.given.get(key) is None and self.known[key].default != 1

    def with_text(self, given: Mapping[str, str]) -> Spec:
        """Returns a copy with these fields, given as text; they replace earlier values."""
        return self._with(given, read_text)

    def with_fields(self, **given: object) -> Spec:
        """Returns a copy with these fields; they replace earlier values."""
        return self._with(given, lambda hint, value: value)

    def build(self) -> Schedule:
        """Creates the schedule.

        Raises:
            ScheduleError: a field is missing, unknown, of the wrong type or out of range.
        """
        if not isinstance(self.make, type):
            return self.make
        fields = dict(self.fields)
        for key, value in self.fields.items():
            if isinstance(value, Spec):
                fields[key] = value.build()
        return build(self.make, fields)

    def _with(self, given: Json, read: Callable[..., object]) -> Spec:
        if not given:
            return self
        known = parameters(self.make)
        others: Data = {}
        fields = dict(self.fields)
        for key, value in given.items():
            if key in known:
                fields[key] = self._value(known[key], read(known[key].hint, value))
            else:
                others[key] = value
        inner = {key: value._with(others, read) for key, value in fields.items() if isinstance(value, Spec)}
        if others and not inner:
            key = next(iter(others))
            has = ", ".join(known) or "none"
            raise ScheduleError(f"{self.label} has no field {brief(key)}; {suggest(key, known, f'it has {has}')}")
        if isinstance(self.make, type):
            return replace(self, fields=fields | inner)
        return replace(self, make=type(self.make), fields=fields | inner, named="")

    def _value(self, parameter: Parameter, value: object) -> object:
        where = f"{self.label}: {parameter.name}"
        hint = parameter.hint
        if hint is not Schedule and not (isinstance(hint, type) and issubclass(hint, BuiltIn)):
            return check_value(where, hint, value)
        if _is_schedule(value):
            return Spec.of(cast(Schedule, value))
        if isinstance(value, Mapping):
            return one(_from_mapping(value), where)
        inner = _from_text(value) if isinstance(value, str) and not value.lstrip().startswith(("{", "[")) else None
        if not isinstance(inner, Spec) or inner.fields:
            raise ScheduleError(
                f"{where} takes the name of a schedule, not {brief(value)}; give its fields after it, as in "
                f"{self.label}:{parameter.name}=yarn,factor=8"
            )
        return inner


ParsedSpec = Spec | Mapping[str, Spec]
"""A parsed spec, or one per layer type."""


def _is_schedule(value: object) -> TypeGuard[Schedule]:
    return isinstance(value, Schedule) and not isinstance(value, type)


def parse(spec: object) -> ParsedSpec:
    """Parses a spec; returns a :class:`Spec`, or ``{layer type: Spec}`` if it has a schedule per layer type.

    Args:
        spec: text, a mapping with the content of a JSON object, or a schedule (any callable).

    Raises:
        ScheduleError: the syntax is invalid, a name or field is unknown, a value does not fit, or a file cannot be
            used.
    """
    if isinstance(spec, Spec):
        return spec
    if isinstance(spec, str):
        return _from_text(spec.strip())
    if isinstance(spec, Mapping):
        return _from_mapping(spec)
    if isinstance(spec, Schedule):
        return load_class(spec)
    raise ScheduleError(f"a schedule is a name, a JSON object or a callable, not {brief(spec)}")


def create(name: str, /, **fields: object) -> Schedule:
    """Creates the built-in schedule ``name`` with these fields: ``create("yarn", factor=8) == Yarn(factor=8)``.

    Raises:
        ScheduleError: the name is unknown, or a field is missing, unknown, of the wrong type or out of range.
    """
    return _named(name).with_fields(**fields).build()


def _named(name: str) -> Spec:
    make = lookup(name)
    return Spec(make, named=make.name)


def describe(schedule: object) -> str:
    """Returns a schedule on one line, with its non-default fields: ``yarn:factor=8``."""
    return Spec.of(cast(Schedule, schedule)).text


def to_dict(schedule: object) -> Data:
    """Returns a schedule as plain JSON data, ``{"name": ..., fields}``; :func:`parse` reads a built-in schedule back.

    A user's schedule has the name of its class or function. Fields whose value and default are None are omitted.
    """
    content: Data = {"name": label_of(schedule)}
    for known, value in _held(schedule):
        if callable(value):
            inner = to_dict(value)
            content |= {**inner, known.name: inner["name"], "name": content["name"]}
        elif value is not None or known.default is not None:
            content[known.name] = json.loads(json.dumps(value, default=str))
    return content


def load_class(make: object, named: str = "") -> Spec:
    """Returns the Spec of a class, function or object used as a schedule.

    Raises:
        ScheduleError: the object cannot be called with ``(rope, length)``.
    """
    kind = make if isinstance(make, type) else type(make)
    if not isinstance(make, Schedule) or not any("__call__" in vars(c) for c in kind.__mro__):
        what = f"class {make.__name__} has no __call__(self, rope, length)" if isinstance(make, type) else repr(make)
        raise ScheduleError(f"{named or label_of(make)} is not a schedule: {what}; see `ropescale schedules`")
    return Spec(make, named=named) if isinstance(make, type) else replace(Spec.of(make), named=named)


def _from_text(text: str) -> ParsedSpec:
    if not text:
        raise ScheduleError("the schedule is empty; give a name, e.g. yarn:factor=8")
    if text.startswith("{"):
        return _from_mapping(read_json_object(text.encode("utf-8", "surrogatepass"), "the schedule"))
    name, colon, rest = text.partition(":")
    match = None if _WORD.match(text) else _FILE.fullmatch(text)
    if match:
        name = match["name"]
        rest = match["fields"] or ""
        colon = match["fields"] is not None
        spec = _from_json_file(name) if name.endswith(".json") else load_class(load(name), name)
    else:
        spec = _named(name)
    if not colon:
        return spec
    single = one(spec, name)
    given = dict[str, str]()
    for part in _parts(rest):
        key, _, value = (piece.strip() for piece in part.partition("="))
        if not key or not value:
            first = next(iter(parameters(single.make)), "key")
            raise ScheduleError(f"{name}: {brief(part.strip())} is not key=value; write {name}:{first}=...")
        if key in given:
            raise ScheduleError(f"{name}: {key} is given twice; remove one")
        given[key] = value
    return single.with_text(given)


def _parts(text: str) -> list[str]:
    """Splits a text at the commas outside brackets and braces."""
    parts: list[str] = []
    for piece in text.split(","):
        if parts and sum(map(parts[-1].count, "[{")) > sum(map(parts[-1].count, "]}")):
            parts[-1] += f",{piece}"
        else:
            parts.append(piece)
    return parts


def _from_json_file(name: str) -> ParsedSpec:
    """Reads a schedule from a file, and records the file's name in its specs."""
    try:
        return mapped(parse(load_json(local_path(name))), lambda part: replace(part, file=name))
    except RecursionError:
        raise ScheduleError(f"{name} refers to itself; give numbers, or a name") from None


def _from_mapping(given: Json) -> ParsedSpec:
    given = {key: value for key, value in given.items() if key != PROVENANCE}
    for value in given.values():
        if isinstance(value, str) and "::" in value:
            raise ScheduleError(f"{brief(value)} is code, which JSON must not name; pass it as the schedule itself")
    if "name" in given:
        name = given.pop("name")
        if not isinstance(name, str):
            raise ScheduleError(f"a schedule's name is a string, not {brief(name)}")
        return one(_from_text(name.strip()), name).with_fields(**given)
    if "rope_type" in given or "type" in given:
        kind = str(given.get("rope_type", given.get("type")))
        spec = _named(_OTHER_NAMES.get(kind, kind))
        spec = spec.with_fields(**{key: value for key, value in given.items() if key in spec.known})
        left = listed(key for key in given if key not in {"rope_type", "type", *spec.known})
        lost = f", which leaves out {left}" if left else ""
        length = ["original_length"] if "original_max_position_embeddings" in given else []
        raise ScheduleError(f"these are rope parameters, not a schedule; write {spec.exact}{lost}", *length)
    if not given or not all(isinstance(value, (str, Mapping, Spec)) or callable(value) for value in given.values()):
        raise ScheduleError('a schedule in JSON needs a name: {"name": "yarn", "factor": 8}')
    return {layers: one(parse(value), layers) for layers, value in given.items()}


def one(spec: ParsedSpec, where: str) -> Spec:
    """Returns the single spec; raises an error that starts with ``where`` if there is one per layer type."""
    if isinstance(spec, Spec):
        return spec
    raise ScheduleError(f"{where} needs one schedule, not one per layer type ({listed(spec)})")


def _held(schedule: object) -> list[tuple[Parameter, object]]:
    """Returns a schedule's fields and values.

    For a class that is not a dataclass, the fields are the constructor's arguments that are stored as attributes.
    """
    known = {} if isroutine(schedule) else parameters(type(schedule))
    return [(field, getattr(schedule, name)) for name, field in known.items() if hasattr(schedule, name)]


def _differs(value: object, default: object) -> bool:
    try:
        return bool(value != default)
    except Exception:  # arrays compare element by element
        return True


def _word(value: object) -> str:
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if is_number(value):
        return str(int(value)) if abs(value) < 1e15 and value == int(value) else brief(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        words = ",".join(map(_word, value))
        if len(value) <= _LONG:
            return f"[{words}]"
        return f"[{len(value)} numbers, sha256 {sha256(words.encode('utf-8', 'backslashreplace'))[:8]}]"
    return " ".join(str(value).split())


def resolve(
    spec: object,
    rope: Rope,
    *,
    factor: float | None = None,
    target_length: int | None = None,
    overrides: Mapping[str, str] | None = None,
) -> Schedule:
    """Creates the schedule for one geometry from a spec and further options.

    Args:
        spec: as for :func:`parse`, but not one schedule per layer type.
        factor: the extension factor; short for the field ``factor``.
        target_length: the target context in tokens; determines a missing factor.
        overrides: fields as text, which replace those of the spec.

    Raises:
        ScheduleError: as for :func:`parse`; or the factor is missing, given twice, or contradicts the target length; or
            the target is shorter than the trained length.
    """
    chosen = one(parse(spec), "a geometry").with_text(overrides or {})
    if factor is not None:
        stated = chosen.given.get("factor")
        if is_number(stated) and stated != factor:
            raise ScheduleError(
                f"{chosen.text} has factor {stated:g}, but factor {factor:g} is given; remove one", "factor"
            )
        chosen = chosen.with_fields(factor=factor)
    if target_length is not None:
        chosen = _with_target(chosen, rope.original_length, target_length)
    if chosen.lacks("factor") and chosen.known["factor"].required:
        raise ScheduleError(
            f"{chosen.label} needs a factor; give it as {chosen.text}{',' if chosen.fields else ':'}factor=8, "
            "or give the target length",
            "target_length",
        )
    schedule = chosen.build()
    return schedule.bound(rope) if isinstance(schedule, BuiltIn) else schedule


def _with_target(spec: Spec, trained: int, target: int) -> Spec:
    """Derives the factor from a target length, or checks the given factor."""
    if target < trained:
        raise ScheduleError(
            f"the target length {target} is shorter than the trained length {trained}; no extension is needed"
        )
    factor = spec.given.get("factor")
    if is_number(factor) and abs(factor * trained - target) >= 1:
        raise ScheduleError(
            f"factor {factor:g} x trained length {trained} = {factor * trained:.10g}, but the target length is "
            f"{target}; use the factor {target / trained:.12g}, or leave one of the two out",
            "target_length",
        )
    return spec.with_fields(factor=target / trained) if spec.lacks("factor") else spec


def parts_of(spec: ParsedSpec) -> list[Spec]:
    """Returns the specs of a parsed schedule: one, or one per layer type."""
    return list(spec.values()) if isinstance(spec, Mapping) else [spec]


def mapped(spec: ParsedSpec, change: Callable[[Spec], Spec]) -> ParsedSpec:
    """Returns a parsed schedule with ``change`` applied to its spec, or to the spec of every layer type."""
    if isinstance(spec, Mapping):
        return {key: change(part) for key, part in spec.items()}
    return change(spec)


def takes(spec: ParsedSpec, key: str) -> bool:
    """Whether a schedule, or the schedule of any layer type, has a field."""
    return any(key in part.known for part in parts_of(spec))


def with_each_factor(schedules: Sequence[object], factors: Sequence[float]) -> list[ParsedSpec]:
    """Combines schedules with several factors, in order; schedules without a factor appear once.

    Raises:
        ScheduleError: as for :func:`parse`; or there is no factor, a schedule has its own, or no schedule takes one.
    """
    specs = [parse(each) for each in schedules]
    if not factors:
        raise ScheduleError("factor is an empty list; give at least one factor, or leave it out", "factor")
    if not any(takes(spec, "factor") for spec in specs):
        raise ScheduleError("factor is given, but no schedule takes a factor; name one, such as yarn", "factor")
    for part in (part for spec in specs for part in parts_of(spec) if part.given.get("factor") is not None):
        given = ",".join(f"{factor:g}" for factor in factors)
        raise ScheduleError(f"{part.text} has its own factor, and factors {given} are given; remove one", "factor")
    return [
        mapped(spec, partial(_with_factor, factor=factor))
        for spec in specs
        for factor in dict.fromkeys(factors if takes(spec, "factor") else factors[:1])
    ]


def _with_factor(part: Spec, factor: float) -> Spec:
    return part.with_fields(factor=factor) if "factor" in part.known else part


def spelled_out(spec: ParsedSpec) -> str:
    """Returns a parsed schedule on one line, with its given fields: ``yarn:factor=8``."""
    if isinstance(spec, Mapping):
        return json.dumps({key: part.text for key, part in spec.items()})
    return spec.text


def file_of(spec: ParsedSpec) -> str:
    """Returns the ``.json`` file that a parsed schedule was read from, as named by the user; "" without a file."""
    files = {part.file for part in parts_of(spec)}
    return files.pop() if len(files) == 1 else ""


def is_same(one: ParsedSpec, other: ParsedSpec) -> bool:
    """Whether two parsed specs denote the same schedule."""
    return _identity(one) == _identity(other)


def _identity(spec: ParsedSpec) -> object:
    """Returns :attr:`Spec.identity`, by layer type if there are several."""
    if isinstance(spec, Mapping):
        return {key: part.identity for key, part in spec.items()}
    return spec.identity


def distinct(given: Iterable[ParsedSpec]) -> list[ParsedSpec]:
    """Returns the distinct schedules, each in its first spelling."""
    unique: list[ParsedSpec] = []
    for spec in given:
        if not any(is_same(spec, each) for each in unique):
            unique.append(spec)
    return unique


@contextmanager
def of_several(spec: ParsedSpec, number: int) -> Iterator[None]:
    """Adds the schedule's spec to errors inside the block, if there are several schedules."""
    try:
        yield
    except (ScheduleError, ConfigError) as error:
        if number < 2:
            raise
        raise type(error)(
            f"{file_of(spec) or spelled_out(spec)}: {error.reason}", *error.fields, advice=error.advice
        ) from error


def repeated(given: Sequence[ParsedSpec]) -> list[str]:
    """Returns a sentence for every repeated schedule, even if it is spelled differently."""
    notes = []
    for place, spec in enumerate(given):
        first = next((each for each in given[:place] if is_same(spec, each)), None)
        if first is not None:
            words = file_of(spec) or spelled_out(spec)
            known = file_of(first) or spelled_out(first)
            notes.append(f"{words} is given twice" if words == known else f"{words} is the same schedule as {known}")
    return list(dict.fromkeys(notes))
