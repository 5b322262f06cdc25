"""One request for several schedules: each takes the fields that it has."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from ..errors import ConfigError, ScheduleError
from ..request import Request
from ..schedules.reading.specs import Spec
from .plan import is_as_is

Asked = Spec | Mapping[str, Spec]
"""A parsed schedule, or one per layer type."""


def spelled_out(spec: Asked) -> str:
    """Returns a parsed schedule on one line, with the fields that were given: ``yarn:factor=8``."""
    if isinstance(spec, Mapping):
        return json.dumps({layers: part.text for layers, part in spec.items()})
    return spec.text


def file_of(spec: Asked) -> str:
    """Returns the ``.json`` file that a parsed schedule was read from, as it was named; "" for none."""
    files = {part.file for part in (spec.values() if isinstance(spec, Mapping) else [spec])}
    return files.pop() if len(files) == 1 else ""


def is_same(one: Asked, other: Asked) -> bool:
    """Whether two parsed schedules are the same one, in whichever words."""
    if isinstance(one, Spec) and isinstance(other, Spec):
        same = _kind(one) is _kind(other) or (one.named == other.named and bool(one.named))
        return same and one.plainest == other.plainest
    if isinstance(one, Spec) or isinstance(other, Spec) or one.keys() != other.keys():
        return False
    return all(is_same(one[layers], other[layers]) for layers in one)


def _kind(spec: Spec) -> object:
    """Returns the class of a schedule; a function itself."""
    return spec.make if isinstance(spec.make, type) or not dataclasses.is_dataclass(spec.make) else type(spec.make)


def distinct(given: Iterable[Asked]) -> list[Asked]:
    """Returns each schedule once, in the words in which it comes first."""
    found: list[Asked] = []
    for spec in given:
        if not any(is_same(spec, each) for each in found):
            found.append(spec)
    return found


@contextmanager
def of_several(spec: Asked, number: int) -> Iterator[None]:
    """Says in errors which schedule it is, where there are several."""
    name = file_of(spec) or spelled_out(spec)
    try:
        yield
    except (ScheduleError, ConfigError) as error:
        if number < 2 or name in str(error):
            raise
        raise type(error)(f"{name}: {error}", *error.fields) from error


def repeated(given: Sequence[Asked]) -> list[str]:
    """Says of each schedule that is given again, in the same words or in others, which one it is."""
    said = []
    for place, spec in enumerate(given):
        first = next((each for each in given[:place] if is_same(spec, each)), None)
        if first is not None:
            words, known = (file_of(each) or spelled_out(each) for each in (spec, first))
            said.append(f"{words} is given twice" if words == known else f"{words} is the same schedule as {known}")
    return list(dict.fromkeys(said))


def check_taken(named: Sequence[Asked], request: Request) -> None:
    """Refuses a field that no schedule takes: it would have no effect anywhere, and nobody would know.

    Raises:
        ScheduleError: names the field.
    """
    given = {name: "factor" for name in ("factor", "target_length") if getattr(request, name) is not None}
    for name, key in given.items():
        if not any(map(partial(_takes, key), named)):
            raise ScheduleError(
                f"{name} is given, and no schedule scales by a number; name one that does, such as yarn, "
                f"or leave {name} out",
                name,
            )
    for key in request.overrides:
        if not any(map(partial(_takes, key), named)):
            raise ScheduleError(
                f"no schedule has the field {key!r}; name one that has, or leave it out",
                "overrides",
            )


def share_of(spec: Asked, request: Request) -> Request:
    """Returns a schedule's share of the request: the fields that it takes."""
    taken = {key: text for key, text in request.overrides.items() if _takes(key, spec)}
    factor = request.factor if _takes("factor", spec) else None
    freeze_at = None if is_as_is(spec) else request.freeze_at
    return dataclasses.replace(request, spec=spec, factor=factor, overrides=taken, freeze_at=freeze_at)


def _takes(key: str, spec: Asked) -> bool:
    return any(part.accepts(key) for part in (spec.values() if isinstance(spec, Mapping) else [spec]))
