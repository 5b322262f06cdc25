"""Which schedules of the family are searched: those that are wanted, and that an engine computes as they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from ....engines.layers import layers_of
from ....engines.registry import ENGINES
from ....errors import ConfigError, DataError
from ....planning.plan import Plan, make_plan
from ....schedules.base import suggest
from ..options import SearchOptions
from .family import EveryPair, RampShape, Scale, ScheduleFamily, family
from .space import Space

_SCALES: tuple[Scale, ...] = ("free", "rule", "one")


def space_of(plan: Plan, target: int, options: SearchOptions) -> Space:
    """Returns what is searched.

    Args:
        plan: YaRN's default for the target length.

    Raises:
        DataError: options that cannot be together, or an engine that is not known.
        ConfigError: the engine computes no schedule of the family as it is.
    """
    if options.engine is not None and options.engine not in ENGINES:
        known = suggest(options.engine, ENGINES, "none is known")
        raise DataError(f"engine {options.engine!r} is not known; {known}", "engine")
    if options.method == "evolution":
        return _of_pairs(plan, target, options)
    numbers = 4 if options.numbers is None else options.numbers
    if numbers not in (2, 4) and (options.keep_short or options.engine):
        given = "keep_short" if options.keep_short else "engine"
        raise DataError(f"{given} is for the ramp, so numbers={numbers} does not go with it", "numbers", given)
    refused = ""
    for shape in _shapes(options):
        space = _space(plan, target, numbers, shape)
        refused = _differences(space, plan, options.engine)
        if not refused:
            return space
    raise ConfigError(
        f"{ENGINES[options.engine or ''].name} computes no such schedule of this model as it is ({refused}); leave "
        f"engine={options.engine} out, and see `ropescale export`",
        "engine",
    )


def _of_pairs(plan: Plan, target: int, options: SearchOptions) -> Space:
    """Returns what evolution searches: LongRoPE's divisors, with YaRN's attention scale."""
    for name in ("keep_short", "engine", "numbers"):
        if getattr(options, name):
            raise DataError(f"{name} is for the ramp, and evolution searches every pair; leave one out", name, "method")
    return Space(
        {key: EveryPair(layer.rope, target / layer.rope.original_length, False) for key, layer in plan.layers.items()}
    )


def _shapes(options: SearchOptions) -> Iterator[RampShape]:
    """Yields the shapes, those with most freedom first."""
    if options.keep_short:
        yield RampShape(scale="one", form="two tables")
        return
    yield RampShape()
    if options.engine is not None:
        yield from (RampShape(scale=scale, whole=whole) for whole, scale in product((False, True), _SCALES))
        yield from (RampShape(scale=scale, form="table") for scale in _SCALES)


def _space(plan: Plan, target: int, numbers: int, shape: RampShape) -> Space:
    families: dict[str, ScheduleFamily] = {
        key: family(layer.rope, target / layer.rope.original_length, numbers, shape)
        for key, layer in plan.layers.items()
    }
    return Space(families)


def _differences(space: Space, plan: Plan, engine: str | None) -> str:
    """Returns how an engine deviates from a member of a space, in a few words; empty where it does not."""
    if engine is None:
        return ""
    member = space.nearest([value + _AWAY[name.rpartition(".")[2]] for name, value in zip(space.names, space.start)])
    planned = make_plan(plan.original.raw, replace(plan.request, spec=space.schedule(member), target_length=None))
    found = [each for layers in layers_of(planned) for each in ENGINES[engine].differences(layers)]
    return ", ".join(f"{each.field}: {each.status}" for each in found if each.status != "honoured")


_AWAY = {"start": 0.3, "end": -0.3, "log_factor": 0.01, "log_scale": 0.05}
"""Away from YaRN's default, where an engine may happen to agree."""
