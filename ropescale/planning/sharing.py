"""One request for several schedules: each takes the fields that it has."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from functools import partial

from ..errors import ScheduleError
from ..request import Request
from ..schedules.specs import Spec
from .plan import is_as_is

Asked = Spec | Mapping[str, Spec]
"""A parsed schedule, or one per layer type."""


def spelled_out(spec: Asked) -> str:
    """Returns a parsed schedule on one line, with the fields that were given: ``yarn:factor=8``."""
    if isinstance(spec, Mapping):
        return json.dumps({layers: part.text for layers, part in spec.items()})
    return spec.text


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
                f"overrides has {key!r}, and no schedule has this field; name one that has, or leave it out",
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
