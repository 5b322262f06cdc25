"""Schedules as a user would write them."""

from __future__ import annotations

from dataclasses import dataclass

from ropescale import Frequencies, Rope
from ropescale.schedules.base import with_theta


@dataclass(frozen=True)
class Half:
    """Slow only the slow half of the pairs."""

    factor: float = 2.0
    scale: float = 1.0

    def __call__(self, rope: Rope, length: int) -> Frequencies:
        inv_freq = rope.inv_freq()
        middle = len(inv_freq) // 2
        return Frequencies(inv_freq[:middle] + [f / self.factor for f in inv_freq[middle:]], self.scale)


@dataclass(frozen=True)
class Stretching:
    """Follows the length: linear, as far as it is needed."""

    length_dependent = True

    def __call__(self, rope: Rope, length: int) -> Frequencies:
        return Frequencies([f / max(1.0, length / rope.original_length) for f in rope.inv_freq()])


@dataclass(frozen=True)
class LargerTheta:
    """A user's own schedule, whose native form knows nothing of pairs that do not turn."""

    def __call__(self, rope: Rope, length: int) -> Frequencies:
        return Frequencies(with_theta(rope, 2 * rope.theta))

    def rope_parameters(self, rope: Rope) -> dict[str, object]:
        return {"rope_type": "default", "rope_theta": 2 * rope.theta}
