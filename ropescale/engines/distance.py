"""How far the numbers that an engine computes are from the requested ones."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import astuple, dataclass, replace
from typing import Any

from ..record import softmax_factor
from ..schedules.as_is import stock_table
from .base import Difference, Layers

_KEYS = {"frequencies": "rope_type", "theta": "rope_theta", "original length": "original_max_position_embeddings"}
"""The rope parameters that differ, by the field of the difference; others have the field's name."""

_OTHERS = ("switch", "attention factor", "softmax scale")
"""The fields that are no rope parameters."""

_VALUES = {"base RoPE": "default", "true": True}
"""The values that are no numbers, as rope parameters."""


@dataclass(frozen=True)
class Distance:
    """How far an engine is from the requested schedule; None where its number is not known.

    Attributes:
        frequencies: the largest relative difference of a pair's frequency, at the served length, and at the trained
            length if the requested table changes with the length.
        attention_factor: the engine's multiplier of cos and sin, divided by the requested one.
        softmax_scale: the engine's factor on the softmax scale, divided by the requested one.
    """

    frequencies: float | None = None
    attention_factor: float | None = None
    softmax_scale: float | None = None


def farthest(kinds: Iterable[Distance]) -> Distance:
    """Returns the largest distances of several kinds of layer; None if one of them is not known."""
    largest = []
    for same, column in zip((0, 1, 1), zip(*map(astuple, kinds))):
        largest.append(None if None in column else max(column, key=lambda value, same=same: abs(value - same)))
    return Distance(*largest)


def distance(layers: Layers, differences: Iterable[Difference]) -> Distance:
    """Computes how far an engine with these differences is, for one kind of layer."""
    found = {each.field: _value(each) for each in differences if each.status != "honoured"}
    changed = {_KEYS.get(field, field): value for field, value in found.items() if field not in _OTHERS}
    # An engine that reads no rope_parameters reads no theta in them either.
    unread = "frequencies" in found and (layers.dialect == "v5" or layers.kind == "proportional")
    if unread or None in changed.values():
        return Distance()
    rope = replace(layers.configuration.ropes[layers.key], scaling=layers.parameters)
    own = replace(rope, scaling={**layers.parameters, **changed})
    wanted, computed = stock_table(rope, layers.length), stock_table(own, layers.length)
    pairs = [*zip(computed.inv_freq, wanted.inv_freq)]
    if "switch" in found:
        pairs += zip(wanted.inv_freq, stock_table(rope, rope.original_length).inv_freq)
    scale = found.get("attention factor", computed.attention_scale)
    softmax = found.get("softmax scale", softmax_factor(own))
    return Distance(
        max((abs(one / other - 1) for one, other in pairs if other), default=0.0),
        scale and scale / wanted.attention_scale,
        softmax and softmax / softmax_factor(rope),
    )


def _value(difference: Difference) -> Any:
    """Returns the value that the engine computes as a rope parameter, or None if it is not one."""
    with suppress(ValueError):
        return float(difference.computes)
    return _VALUES.get(difference.computes)
