"""The families of all layer types that change, as one vector of numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import torch

from ....schedules import Schedule
from .family import Point, Ramp

DiffTables = Mapping[str, tuple[torch.Tensor, torch.Tensor]]
"""By layer type, the frequencies, float64 [pairs], and the attention scale."""


@dataclass(frozen=True)
class Space:
    """All numbers of a search: those of each layer type, one after the other.

    Attributes:
        families: by layer type.
    """

    families: Mapping[str, Ramp]

    @property
    def names(self) -> list[str]:
        """The names of the numbers; with the layer type where there are several."""
        single = len(self.families) == 1
        return [name if single else f"{key}.{name}" for key, each in self.families.items() for name in each.names]

    @property
    def rates(self) -> list[float]:
        """The rates of the numbers."""
        return list(chain.from_iterable(each.rates for each in self.families.values()))

    @property
    def start(self) -> Point:
        """The numbers of YaRN's default."""
        return tuple(chain.from_iterable(each.start for each in self.families.values()))

    @property
    def later_starts(self) -> list[Point]:
        """Other points where a search may begin: every ramp starts later by the same share of its width."""
        each = (family.later_starts for family in self.families.values())
        return [tuple(chain.from_iterable(parts)) for parts in zip(*each, strict=True)]

    @property
    def base(self) -> Point:
        """The numbers under which every pair keeps its frequency."""
        return tuple(chain.from_iterable(each.base for each in self.families.values()))

    def nearest(self, point: Sequence[float]) -> Point:
        """Returns the nearest numbers within the bounds."""
        return tuple(chain.from_iterable(each.nearest(part) for each, part in self.parts(point)))

    def tables(self, point: torch.Tensor) -> DiffTables:
        """Returns the tables of each layer type; differentiable in ``point``, float64 [numbers]."""
        sizes = [len(each.names) for each in self.families.values()]
        parts = zip(self.families.items(), point.split(sizes), strict=True)
        return {key: each.table(part) for (key, each), part in parts}

    def schedule(self, point: Point) -> Schedule | dict[str, Schedule]:
        """Returns the schedule of all layers that change; by layer type where these differ."""
        found = (each.schedule(tuple(part)) for each, part in self.parts(point))
        schedules = dict(zip(self.families, found, strict=True))
        distinct = set(map(repr, schedules.values()))
        return schedules if len(distinct) > 1 else next(iter(schedules.values()))

    def parts(self, point: Sequence[float]) -> Iterator[tuple[Ramp, Sequence[float]]]:
        """Yields each family and its numbers."""
        at = 0
        for each in self.families.values():
            yield each, point[at : at + len(each.names)]
            at += len(each.names)
