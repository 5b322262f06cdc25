"""Makes the schedule for one geometry from a spec and what else was asked for."""

from __future__ import annotations

from collections.abc import Mapping

from ...errors import ScheduleError
from ...output.formatting import listed
from ...rope import Rope
from ..base import BuiltIn, Schedule, lookup
from .specs import Spec, parse


def resolve(
    spec: object,
    rope: Rope,
    *,
    factor: float | None = None,
    target_length: int | None = None,
    overrides: Mapping[str, str] | None = None,
) -> Schedule:
    """Makes the schedule for one geometry from a spec and further options.

    Args:
        spec: as for :func:`parse`; of a spec per layer type, the one for ``rope.layer_type`` (``as-is`` if none).
        factor: how many times longer; short for the field ``factor``.
        target_length: the context wanted, in tokens; gives the factor where it is not given.
        overrides: fields as text, which replace those of the spec.

    Raises:
        ScheduleError: as :func:`parse`; a factor that is missing, given twice, or contradicts the target length;
            a target shorter than the trained length.
    """
    chosen = _for_layers(parse(spec), rope).with_text(overrides or {})
    chosen = _with_factor(chosen, factor)
    chosen = _with_target(chosen, rope, target_length)
    if chosen.needs("factor"):
        raise ScheduleError(
            f"{chosen.label} needs a factor; give it as {chosen.text}{',' if chosen.fields else ':'}factor=8, "
            "or give the target length",
            "target_length",
        )
    schedule = chosen.build()
    return schedule.bound(rope) if isinstance(schedule, BuiltIn) else schedule


def _for_layers(spec: Spec | Mapping[str, Spec], rope: Rope) -> Spec:
    if isinstance(spec, Spec):
        return spec
    if rope.layer_type is None:
        raise ScheduleError(
            f"the schedule is given per layer type ({listed(spec)}), and this model keeps one table for all its "
            "layers; give one schedule"
        )
    return spec.get(rope.layer_type) or Spec(lookup("as-is"), named="as-is")


def _with_factor(spec: Spec, factor: float | None) -> Spec:
    if factor is None:
        return spec
    stated = spec.get("factor")
    if isinstance(stated, (int, float)) and stated != factor:
        raise ScheduleError(f"{spec.text} says factor {stated:g}, and factor {factor:g} is given; keep one", "factor")
    return spec.with_fields(factor=factor)


def _with_target(spec: Spec, rope: Rope, target: int | None) -> Spec:
    if target is None:
        return spec
    trained = rope.original_length
    if target < trained:
        raise ScheduleError(
            f"the target length {target} is shorter than the trained length {trained}; nothing needs to be extended"
        )
    factor = spec.get("factor")
    if isinstance(factor, (int, float)) and abs(factor * trained - target) >= 1:
        raise ScheduleError(
            f"factor {factor:g} x trained length {trained} = {factor * trained:.10g}, but the target length is "
            f"{target}; use the factor {target / trained:g}, or leave one of the two out",
            "target_length",
        )
    return spec.with_fields(factor=target / trained) if spec.lacks("factor") else spec
