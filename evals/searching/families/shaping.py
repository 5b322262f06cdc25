"""Chooses the members of the family that are searched: those wanted, which an engine computes as they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product

from ....engines.base import Difference, Engine, layers_of, of_plan
from ....engines.registry import ENGINES
from ....errors import ConfigError
from ....planning.plan import Plan, make_plan
from ..options import SearchOptions
from ..starting import check_engine
from .family import RampShape, Scale, family
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
    check_engine(options.engine)
    numbers = options.numbers
    for differs in (_in_the_folder, _with_commands):
        for shape in _shapes(options):
            space = _space(plan, target, numbers, shape)
            if options.engine is None or not differs(space, plan, ENGINES[options.engine]):
                return space
    assert options.engine is not None
    why = _with_commands(_space(plan, target, numbers, next(_shapes(options))), plan, ENGINES[options.engine])
    raise ConfigError(
        f"{ENGINES[options.engine].name} computes no such schedule of this model as it is ({why}); leave "
        f"engine={options.engine} out, and see `ropescale export`",
        "engine",
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
    ropes = {key: layer.rope for key, layer in plan.layers.items()}
    return Space({key: family(rope, target / rope.original_length, numbers, shape) for key, rope in ropes.items()})


def _in_the_folder(space: Space, plan: Plan, engine: Engine) -> str:
    """Returns how an engine deviates from a member of a space in a patched folder; empty where it does not."""
    planned = _away(space, plan)
    return _said(each for layers in layers_of(planned) for each in engine.differences(layers))


def _with_commands(space: Space, plan: Plan, engine: Engine) -> str:
    """Returns how it deviates where it is served by the commands of ``ropescale export``; empty where it does not."""
    serving = engine.spelled(of_plan("MODEL", plan.original, _away(space, plan)))
    changed = (layers for layers in serving.layers if layers.key in plan.layers)
    return _said(each for layers in changed for each in engine.found(serving, layers))


def _said(differences: Iterable[Difference]) -> str:
    return ", ".join(f"{each.field}: {each.status}" for each in differences if each.status != "honoured")


def _away(space: Space, plan: Plan) -> Plan:
    """Plans a member of a space away from YaRN's default, where an engine may happen to agree."""
    member = space.nearest([value + _AWAY[name.rpartition(".")[2]] for name, value in zip(space.names, space.start)])
    return make_plan(plan.original.raw, replace(plan.request, spec=space.schedule(member), target_length=None))


_AWAY = {"start": 0.3, "end": -0.3, "log_factor": 0.01, "log_scale": 0.05}
