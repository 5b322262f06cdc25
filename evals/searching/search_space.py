"""The search space: a family of schedules and its parameters.

The family is YaRN's with real numbers (Peng et al. 2023, arXiv:2309.00071)::

    inv_i = b_i ((1 - r_i) + r_i / s),    r_i = clamp((i - start) / (end - start), 0, 1)

for pair i of frequency b_i. Pairs up to ``start`` keep their frequency, and the frequencies of pairs from ``end`` on
are divided by the factor s. Cos and sin are multiplied by an attention scale. The parameters are start, end, and the
logarithms of the factor and of the scale. Pairs are counted from 0, and frequencies are in radians per token, in
float64.

The parameters of all changed layer types form one vector. For an engine, the space contains only schedules that the
engine computes exactly.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product
from typing import Literal, get_args

import torch

from ...engines import ENGINES, deviations
from ...engines.base import Difference, Engine, of_plan
from ...errors import ConfigError
from ...planning.plan import Plan, make_plan
from ...rope import Rope
from ...schedules import Schedule, Table, Yarn
from ...schedules.base import Frequencies
from ...schedules.by_parts import ramp_ends, temperature

Point = tuple[float, ...]
"""A member of a family, as its parameters."""

_NARROWEST = 0.01
"""The smallest width of a ramp, in pairs; narrower ramps give the same frequencies."""


KNOWN_RAMPS = ((16, 0.5), (8, 0.5), (16, 1))
"""Ramps that were better than YaRN's default for one model, and not for another: their ends in turns, ``beta_fast`` and
``beta_slow``."""

STARTS = 1 + len(KNOWN_RAMPS)

Scale = Literal["free", "rule", "one"]
"""The attention scale: a searched number, YaRN's ``0.1 ln s + 1`` for the factor s, or 1."""


@dataclass(frozen=True)
class Ramp:
    """YaRN's family: the ramp's start and end, the factor and the attention scale.

    Attributes:
        rope: the geometry of the model's rotary embedding.
        factor: the target length divided by the trained length.
        scale: the attention scale.
        whole: whether the ramp's ends are whole pairs; the start is rounded down and the end up, as with YaRN's
            ``truncate``.
    """

    rope: Rope
    factor: float
    scale: Scale = "free"
    whole: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the searched parameters."""
        return ("start", "end", "log_factor", *(["log_scale"] if self.scale == "free" else []))

    @property
    def rates(self) -> tuple[float, ...]:
        """The learning rates. Those of the ramp's ends are in pairs, and proportional to the width of YaRN's ramp."""
        share = (self._default["end"] - self._default["start"]) / _USUAL
        rates = _RATES | {name: share * _RATES[name] for name in ("start", "end")}
        return tuple(rates[name] for name in self.names)

    @property
    def start(self) -> Point:
        """YaRN's default parameters, within the bounds."""
        return self.nearest([self._default[name] for name in self.names])

    @property
    def starts(self) -> list[Point]:
        """YaRN's default, and :data:`KNOWN_RAMPS`."""
        ramps = [ramp_ends(self.rope, fast, slow, False) for fast, slow in KNOWN_RAMPS]
        return [self.start, *(self.nearest((*ends, *self.start[2:])) for ends in ramps)]

    @property
    def _default(self) -> dict[str, float]:
        start, end = ramp_ends(self.rope, Yarn.beta_fast, Yarn.beta_slow, Yarn.truncate)
        scale = math.log(temperature(self.factor))
        return {"start": float(start), "end": float(end), "log_factor": math.log(self.factor), "log_scale": scale}

    def table(self, point: torch.Tensor | Point) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the frequencies, float64 [pairs], and the attention scale. Both are differentiable with respect to
        ``point``, [numbers], if that is a tensor."""
        values = {name: torch.tensor(value, dtype=torch.float64) for name, value in self._default.items()}
        values |= dict(zip(self.names, torch.as_tensor(point, dtype=torch.float64).unbind()))
        start = values["start"]
        end = values["end"]
        if self.whole:  # rounding uses a straight-through gradient
            start = start + (torch.floor(start) - start).detach()
            end = end + (torch.ceil(end) - end).detach()
        base = torch.tensor(self.rope.inv_freq(), dtype=torch.float64)
        pairs = torch.arange(self.rope.pairs, dtype=torch.float64)
        ramp = ((pairs - start) / (end - start)).clamp(0, 1)
        inv_freq = base * ((1 - ramp) + ramp * torch.exp(-values["log_factor"]))
        return inv_freq, self._scale(values) * self.rope.table_scale

    def _scale(self, values: Mapping[str, torch.Tensor]) -> torch.Tensor:
        if self.scale == "free":
            return torch.exp(values["log_scale"])
        if self.scale == "one":
            return torch.ones((), dtype=torch.float64)
        return 1 + 0.1 * values["log_factor"]

    def nearest(self, point: Sequence[float]) -> Point:
        """Returns the nearest point within the bounds: ``0 <= start < end <= rotary dim - 1``, and at least the default
        factor.

        A smaller factor would mean a shorter context in engines, which multiply the trained length by the factor.
        """
        values = self._default | dict(zip(self.names, map(float, point), strict=True))
        last = self.rope.rotary_dim - 1.0  # as in YaRN
        values["start"] = min(max(values["start"], 0.0), last - _NARROWEST)
        values["end"] = min(max(values["end"], values["start"] + _NARROWEST), last)
        values["log_factor"] = max(values["log_factor"], math.log(self.factor))
        return tuple(values[name] for name in self.names)

    def schedule(self, point: Point) -> Schedule:
        """Returns the schedule of a point: ``yarn`` with the ramp's ends in turns, or a table if the model's own
        frequencies are not plain."""
        inv_freq, scale = self.table(point)
        if not self.rope.is_plain:
            return Table.of(Frequencies(inv_freq.tolist(), float(scale)), self.rope)
        values = self._default | dict(zip(self.names, point))
        start = values["start"]
        end = values["end"]
        if self.whole:  # between two pairs, so that rounding a logarithm cannot reach another pair
            start = math.floor(start) + 0.5
            end = math.ceil(end) - 0.5
        factor = float(f"{math.exp(values['log_factor']):.14g}")
        return Yarn(factor, self._turns(start), self._turns(end), truncate=self.whole, attention_factor=float(scale))

    def _turns(self, pair: float) -> float:
        """Returns the turns of a pair, which may be fractional, within the trained length, for unscaled
        frequencies."""
        rope = self.rope
        return rope.original_length * rope.theta ** (-2 * pair / rope.rotary_dim) / (2 * math.pi)


_USUAL = 13
"""The width, in pairs, of the ramp for which the rates below were chosen (head size 64)."""

_RATES = {"start": 0.3, "end": 0.3, "log_factor": 0.03, "log_scale": 0.01}


DiffTables = Mapping[str, tuple[torch.Tensor, torch.Tensor]]
"""The frequencies, float64 [pairs], and the attention scale of each layer type."""


@dataclass(frozen=True)
class Space:
    """All parameters of a search, concatenated over layer types.

    Attributes:
        families: the family of each layer type.
    """

    families: Mapping[str, Ramp]

    @property
    def names(self) -> list[str]:
        """The names of the parameters, with the layer type if there are several."""
        if len(self.families) == 1:
            [family] = self.families.values()
            return list(family.names)
        return [f"{key}.{name}" for key, family in self.families.items() for name in family.names]

    @property
    def rates(self) -> list[float]:
        """The learning rates of the parameters."""
        return list(chain.from_iterable(each.rates for each in self.families.values()))

    @property
    def start(self) -> Point:
        """The parameters of YaRN's default."""
        return self.starts[0]

    @property
    def starts(self) -> list[Point]:
        """The points to try first; the search begins at the best of them."""
        each = (family.starts for family in self.families.values())
        return [tuple(chain.from_iterable(parts)) for parts in zip(*each)]

    def nearest(self, point: Sequence[float]) -> Point:
        """Returns the nearest point within the bounds."""
        return tuple(chain.from_iterable(ramp.nearest(point[part]) for _, ramp, part in self._parts))

    def tables(self, point: torch.Tensor | Point) -> DiffTables:
        """Returns the tables of each layer type, differentiable with respect to ``point`` if that is a tensor, float64
        [numbers]."""
        return {key: ramp.table(point[part]) for key, ramp, part in self._parts}

    def schedule(self, point: Point) -> Schedule | dict[str, Schedule]:
        """Returns the schedule of all changed layers, or a dict by layer type if their schedules differ."""
        schedules = {key: ramp.schedule(point[part]) for key, ramp, part in self._parts}
        distinct = set(map(repr, schedules.values()))
        return schedules if len(distinct) > 1 else next(iter(schedules.values()))

    @property
    def _parts(self) -> Iterator[tuple[str, Ramp, slice]]:
        """Yields each layer type, its family, and the place of its numbers."""
        at = 0
        for key, ramp in self.families.items():
            yield key, ramp, slice(at, at + len(ramp.names))
            at += len(ramp.names)


def planned_with(plan: Plan, schedule: object) -> Plan:
    """Returns a plan for the same model with a different schedule."""
    layers = None if isinstance(schedule, Mapping) else plan.request.layers
    return make_plan(plan.original.raw, replace(plan.request, spec=schedule, target_length=None, layers=layers))


def space_of(plan: Plan, target: int, engine: str | None = None) -> Space:
    """Returns the search space.

    Args:
        plan: the plan of YaRN's default for the target length.
        engine: a key of ``ENGINES``; None for all schedules of the family.

    Raises:
        ConfigError: the engine does not compute any schedule of the family exactly.
    """
    if engine is None:
        return _space(plan, target)
    # Those with the most freedom first.
    spaces = [_space(plan, target, scale, whole) for whole, scale in product((False, True), get_args(Scale))]
    known = ENGINES[engine]
    for differs in (_in_the_folder, _with_commands):
        for space in spaces:
            if not differs(space, plan, known):
                return space
    why = _with_commands(spaces[0], plan, known)
    raise ConfigError(
        f"{known.name} computes no schedule of this search exactly ({why}); leave the engine out, and see "
        "`ropescale export`",
        "engine",
    )


def _space(plan: Plan, target: int, scale: Scale = "free", whole: bool = False) -> Space:
    families = {}
    for key, layer in plan.layers.items():
        factor = target / layer.rope.original_length
        families[key] = Ramp(layer.rope, factor, scale, whole)
    return Space(families)


def _in_the_folder(space: Space, plan: Plan, engine: Engine) -> str:
    """Describes how an engine's values for a patched folder differ from a schedule of the space, or returns ""."""
    return _said(deviations(engine, _away(space, plan)))


def _with_commands(space: Space, plan: Plan, engine: Engine) -> str:
    """Describes how an engine that runs the commands of ``ropescale export`` differs from a schedule, or returns ""."""
    serving = engine.spelled(of_plan("MODEL", plan.original, _away(space, plan)))
    changed = (layers for layers in serving.layers if layers.key in plan.layers)
    return _said(each for layers in changed for each in engine.remaining(serving, layers))


def _said(differences: Iterable[Difference]) -> str:
    return ", ".join(f"{each.field}: {each.status}" for each in differences if each.status != "honoured")


def _away(space: Space, plan: Plan) -> Plan:
    """Plans a schedule of the space that differs from YaRN's default, for which an engine may agree by coincidence."""
    member = space.nearest([value + _AWAY[name.rpartition(".")[2]] for name, value in zip(space.names, space.start)])
    return planned_with(plan, space.schedule(member))


_AWAY = {"start": 0.3, "end": -0.3, "log_factor": 0.01, "log_scale": 0.05}
