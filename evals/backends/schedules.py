"""The schedules of a run, as they are requested."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ...request import RequestOptions
from ...schedules.specs import with_each_factor


@dataclass(frozen=True)
class Schedules:
    """The schedules of a run in addition to ``as-is``, and their patching options.

    Attributes:
        given: specs, schedule objects or variants.
        baseline: the baseline's spec; None for ``as-is``.
        patching: keyword arguments of :func:`ropescale.patch`.
    """

    given: Iterable[object] = ()
    baseline: object = None
    patching: RequestOptions = field(default_factory=RequestOptions)


def requested(
    schedules: Iterable[object],
    baseline: object,
    factor: float | Sequence[float] | None,
    patching: RequestOptions,
) -> Schedules:
    """Returns the schedules of a call; several factors multiply the schedules that take one."""
    given = [schedules] if isinstance(schedules, (str, Mapping)) or callable(schedules) else list(schedules)
    if isinstance(factor, Sequence):
        given, factor = list(with_each_factor(given, factor)), None
    return Schedules(given, baseline, {**patching, "factor": factor})
