"""How far the numbers that an engine computes are from the requested ones."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import astuple, dataclass, replace
from typing import Any

from ..record import softmax_factor
from ..schedules.as_is import stock_table
from .base import Difference, Layers

_KEYS = {"frequencies": "rope_type", "theta": "rope_theta", "original length": "original_max_position_embeddings"}
"""The rope parameters that differ, by the field of the difference; others have the field's name."""


@dataclass(frozen=True)
class Distance:
    """The largest relative differences from the requested schedule; infinite where the engine's number is not known.

    Attributes:
        frequencies: of a pair's frequency, at the served length, and at the trained length if the requested table
            changes with the length.
        attention_factor: of the multiplier of cos and sin.
        softmax_scale: of the factor on the softmax scale.
    """

    frequencies: float = math.inf
    attention_factor: float = math.inf
    softmax_scale: float = math.inf


def largest(kinds: Iterable[Distance]) -> Distance:
    """Returns the largest distances of several kinds of layer."""
    return Distance(*map(max, zip(*map(astuple, kinds))))


def distance(layers: Layers, differences: Iterable[Difference]) -> Distance:
    """Computes how far an engine with these differences is, for one kind of layer."""
    found = {each.field: _value(each.computes) for each in differences if each.status != "honoured"}
    others = ("switch", "attention factor", "softmax scale")
    changed = {_KEYS.get(field, field): value for field, value in found.items() if field not in others}
    # An engine that reads no rope_parameters reads no theta in them either.
    unread = "frequencies" in found and (layers.dialect == "v5" or layers.kind == "proportional")
    if unread or math.inf in changed.values():
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
        abs(scale / wanted.attention_scale - 1),
        abs(softmax / softmax_factor(rope) - 1),
    )


def _value(computes: str) -> Any:
    """Returns the value that an engine computes as a rope parameter, infinite if it is not one."""
    with suppress(ValueError):
        return float(computes)
    return {"base RoPE": "default", "true": True}.get(computes, math.inf)
