"""Schedules as a user would write them."""

from __future__ import annotations

from dataclasses import dataclass

from ropescale import Frequencies, Rope


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
