"""The search space: a family of schedules and its parameters.

The family is YaRN's with real numbers (Peng et al. 2023, arXiv:2309.00071)::

    inv_i = b_i ((1 - r_i) + r_i / s),    r_i = clamp((i - start) / (end - start), 0, 1)

for pair i of frequency b_i. Pairs up to ``start`` keep their frequency, and the frequencies of pairs from ``end`` on
are divided by the factor s. Cos and sin are multiplied by an attention scale. The parameters are start, end, and the
logarithms of the factor and of the scale. Pairs are counted from 0, and frequencies are in radians per token, in
float64.

The parameters of all changed layer types form one vector.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain

import torch

from ...planning.plan import Plan, make_plan
from ...rope import Rope
from ...schedules import Schedule, Table, Yarn
from ...schedules.base import Frequencies
from ...schedules.by_parts import ramp_ends, temperature

Point = tuple[float, ...]
"""A member of a family, as its parameters."""

_NARROWEST = 0.01
"""The smallest width of a ramp, in pairs; narrower ramps give the same frequencies."""

NAMES = ("start", "end", "log_factor", "log_scale")
"""The names of the searched parameters."""


@dataclass(frozen=True)
class Ramp:
    """YaRN's family: the ramp's start and end, the factor and the attention scale.

    Attributes:
        rope: the geometry of the model's rotary embedding.
        factor: the target length divided by the trained length.
    """

    rope: Rope
    factor: float

    @property
    def rates(self) -> tuple[float, ...]:
        """The learning rates. Those of the ramp's ends are in pairs, and proportional to the width of YaRN's ramp."""
        start, end, *_ = self._default
        share = (end - start) / _USUAL
        return (0.3 * share, 0.3 * share, 0.03, 0.01)

    @property
    def start(self) -> Point:
        """YaRN's default parameters, within the bounds."""
        return self.nearest(self._default)

    @property
    def later_starts(self) -> list[Point]:
        """YaRN's default with the ramp's start moved by one, two and three eighths of the ramp's width."""
        start, end, *others = self.start
        return [self.nearest((start + (end - start) * eighths / 8, end, *others)) for eighths in (1, 2, 3)]

    @property
    def last(self) -> int:
        """The largest end of a ramp, rotary dim - 1 as in YaRN."""
        return self.rope.rotary_dim - 1

    @property
    def _default(self) -> Point:
        start, end = ramp_ends(self.rope, Yarn.beta_fast, Yarn.beta_slow, Yarn.truncate)
        return float(start), float(end), math.log(self.factor), math.log(temperature(self.factor))

    def table(self, point: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the frequencies, float64 [pairs], and the attention scale. Both are differentiable with respect to
        ``point``, [numbers]."""
        start, end, log_factor, log_scale = point.unbind()
        base = torch.tensor(self.rope.inv_freq(), dtype=torch.float64)
        pairs = torch.arange(self.rope.pairs, dtype=torch.float64)
        ramp = ((pairs - start) / (end - start)).clamp(0, 1)
        inv_freq = base * ((1 - ramp) + ramp * torch.exp(-log_factor))
        return inv_freq, torch.exp(log_scale) * self.rope.table_scale

    def nearest(self, point: Sequence[float]) -> Point:
        """Returns the nearest point within the bounds: ``0 <= start < end <= rotary dim - 1``, and at least the default
        factor.

        A smaller factor would mean a shorter context in engines, which multiply the trained length by the factor.
        """
        start, end, log_factor, log_scale = map(float, point)
        start = min(max(start, 0.0), self.last - _NARROWEST)
        end = min(max(end, start + _NARROWEST), float(self.last))
        return start, end, max(log_factor, math.log(self.factor)), log_scale

    def schedule(self, point: Point) -> Schedule:
        """Returns the schedule of a point: ``yarn`` with the ramp's ends in turns, or a table if the model's own table
        is not theta's."""
        inv_freq, scale = self.table(torch.tensor(point, dtype=torch.float64))
        if not self.rope.is_plain:
            return Table.of(Frequencies(inv_freq.tolist(), float(scale)), self.rope)
        start, end, log_factor, _ = point
        factor = float(f"{math.exp(log_factor):.14g}")
        return Yarn(factor, self._turns(start), self._turns(end), truncate=False, attention_factor=float(scale))

    def _turns(self, pair: float) -> float:
        """Returns the turns of a pair, which may be fractional, within the trained length, for unscaled
        frequencies."""
        rope = self.rope
        return rope.original_length * rope.theta ** (-2 * pair / rope.rotary_dim) / (2 * math.pi)


_USUAL = 13
"""The width, in pairs, of the ramp for which the rates were chosen (head size 64)."""


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
        single = len(self.families) == 1
        return [name if single else f"{key}.{name}" for key in self.families for name in NAMES]

    @property
    def rates(self) -> list[float]:
        """The learning rates of the parameters."""
        return list(chain.from_iterable(each.rates for each in self.families.values()))

    @property
    def start(self) -> Point:
        """The parameters of YaRN's default."""
        return tuple(chain.from_iterable(each.start for each in self.families.values()))

    @property
    def later_starts(self) -> list[Point]:
        """Alternative starting points, in which every ramp starts later by the same share of its width."""
        each = (family.later_starts for family in self.families.values())
        return [tuple(chain.from_iterable(parts)) for parts in zip(*each, strict=True)]

    def nearest(self, point: Sequence[float]) -> Point:
        """Returns the nearest point within the bounds."""
        return tuple(chain.from_iterable(each.nearest(part) for each, part in self.parts(point)))

    def tables(self, point: torch.Tensor) -> DiffTables:
        """Returns the tables of each layer type, differentiable with respect to ``point``, float64 [numbers]."""
        parts = zip(self.families.items(), point.split(len(NAMES)), strict=True)
        return {key: each.table(part) for (key, each), part in parts}

    def schedule(self, point: Point) -> Schedule | dict[str, Schedule]:
        """Returns the schedule of all changed layers, or a dict by layer type if their schedules differ."""
        found = (each.schedule(tuple(part)) for each, part in self.parts(point))
        schedules = dict(zip(self.families, found, strict=True))
        distinct = set(map(repr, schedules.values()))
        return schedules if len(distinct) > 1 else next(iter(schedules.values()))

    def parts(self, point: Sequence[float]) -> Iterator[tuple[Ramp, Sequence[float]]]:
        """Yields each family and its numbers."""
        for number, each in enumerate(self.families.values()):
            yield each, point[len(NAMES) * number :][: len(NAMES)]


Divided = tuple[Sequence[float], Sequence[float], Sequence[float]]
"""The frequencies of all pairs in radians per token: the model's own, those of the start, and those found."""


@dataclass(frozen=True)
class Learned:
    """A point of a search space.

    Attributes:
        plan: the plan of the starting schedule.
        space: the search space.
        point: the learned numbers.
    """

    plan: Plan
    space: Space
    point: Point

    @cached_property
    def schedule(self) -> Schedule | dict[str, Schedule]:
        """The schedule of the point, or a dict by layer type if the schedules differ."""
        return self.space.schedule(self.point)

    @property
    def tables(self) -> dict[str, Divided]:
        """The frequencies of each layer type: the model's own, those of the start, and those found."""
        start, found = (
            self.space.tables(torch.tensor(point, dtype=torch.float64)) for point in (self.space.start, self.point)
        )
        own = {key: layer.rope.inv_freq() for key, layer in self.plan.layers.items()}
        return {key: (own[key], start[key][0].tolist(), found[key][0].tolist()) for key in own}

    @property
    def found_plan(self) -> Plan:
        """The plan of the found schedule."""
        return planned_with(self.plan, self.schedule)


def planned_with(plan: Plan, schedule: object) -> Plan:
    """Returns a plan for the same model with a different schedule."""
    layers = None if isinstance(schedule, Mapping) else plan.request.layers
    return make_plan(plan.original.raw, replace(plan.request, spec=schedule, target_length=None, layers=layers))


def space_of(plan: Plan, target: int) -> Space:
    """Returns the search space.

    Args:
        plan: the plan of YaRN's default for the target length.
    """
    ropes = {key: layer.rope for key, layer in plan.layers.items()}
    return Space({key: Ramp(rope, target / rope.original_length) for key, rope in ropes.items()})
