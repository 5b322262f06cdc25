"""The objective that a recommendation minimises: the loss at some lengths, each with its weight."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ...errors import DataError
from ...lengths import parse_length
from ...output.formatting import brief

SHORT_WEIGHT = 0.1
"""The weight of the trained length beside the target's, where none is given."""


@dataclass(frozen=True)
class Objective:
    """A weighted mean of the losses (nats per token) of the first L positions of each window.

    Attributes:
        weights: by length, ascending; they sum to 1.
        target: the context wanted, in tokens.
        trained: the model's trained context.
    """

    weights: Mapping[int, float]
    target: int
    trained: int

    @property
    def short(self) -> int:
        """The longest length within the trained one; what a schedule costs is measured there."""
        return min(self.trained, self.target)

    @property
    def said(self) -> str:
        """The objective in words."""
        parts = [f"{weight:.3g} at {length:,}" for length, weight in self.weights.items()]
        return f"loss at {self.target:,}" if len(parts) == 1 and self.target in self.weights else ", ".join(parts)

    @property
    def needed(self) -> tuple[int, ...]:
        """The lengths that every candidate is measured at, ascending."""
        return tuple(sorted({*self.weights, self.short, self.target}))

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths that one pass at the target gives besides: half the trained one, and its doubles."""
        doubles, length = [max(2, self.short // 2)], self.short
        while length < self.target:
            doubles.append(length)
            length *= 2
        return tuple(sorted({*self.needed, *doubles}))


def objective(
    target: int, trained: int, short_weight: float | None = None, lengths: str | Mapping[int | str, float] | None = None
) -> Objective:
    """Returns the objective that is asked for.

    Args:
        trained: the model's trained context, in tokens.
        short_weight: weight of the trained length, from 0 to below 1; the target has the rest.
        lengths: weights by length instead, such as ``"2k:0.7,32k:0.3"``; none is longer than the target.

    Raises:
        DataError: a weight or a length that cannot be, or both are given.
    """
    short = min(trained, target)
    if lengths is not None:
        if short_weight is not None:
            raise DataError(
                "short_weight and lengths both say what counts; leave one of the two out", "short_weight", "lengths"
            )
        return Objective(_weights(lengths, target), target, trained)
    share = SHORT_WEIGHT if short_weight is None else short_weight
    if not 0 <= share < 1:
        raise DataError(f"short_weight is {share:g}; give a share from 0 to below 1", "short_weight")
    weights = {short: share, target: 1 - share} if share and short < target else {target: 1.0}
    return Objective(weights, target, trained)


def _weights(lengths: str | Mapping[int | str, float], target: int) -> dict[int, float]:
    """Reads weights by length, and makes them sum to 1."""
    pairs = _pairs(lengths) if isinstance(lengths, str) else list(lengths.items())
    found = {parse_length(length): weight for length, weight in pairs}
    if not found or len(found) < len(pairs):
        raise DataError("lengths names a length twice, or none; give each once, as in '2k:0.7,32k:0.3'", "lengths")
    for length, weight in found.items():
        if length > target:
            raise DataError(f"lengths has {length:,}, which is beyond the target {target:,}; leave it out", "lengths")
        if not (weight > 0 and math.isfinite(weight)):
            raise DataError(f"lengths gives {length:,} the weight {weight:g}; give a positive number", "lengths")
    total = math.fsum(found.values())
    return {length: found[length] / total for length in sorted(found)}


def _pairs(text: str) -> list[tuple[int | str, float]]:
    found: list[tuple[int | str, float]] = []
    for part in text.split(","):
        length, _, weight = part.strip().partition(":")
        try:
            found.append((length, float(weight)))
        except ValueError:
            raise DataError(
                f"lengths has {brief(part.strip())}, which is no length with its weight; write '2k:0.7,32k:0.3'",
                "lengths",
            ) from None
    return found
