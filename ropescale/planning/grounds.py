"""Finds the geometry that a schedule builds on, even in a model that is already scaled."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ..configs.configuration import Configuration
from ..errors import ConfigError
from ..lengths import LONGEST
from ..output.formatting import cut
from ..request import Request
from ..rope import Rope
from ..schedules.as_is import from_rope_parameters, stock_table
from ..schedules.base import length_dependent


def grounds(configuration: Configuration, chosen: Iterable[str], request: Request) -> dict[str, Rope]:
    """Returns the geometry that the schedule of each chosen layer type builds on.

    Raises:
        ConfigError: a layer type is already scaled, and the request does not say how to proceed, or cannot be met.
    """
    found = {key: _ground(configuration.ropes[key], request) for key in chosen}
    if not request.on_top:
        return found
    # Layers without scaling count from the model's present length as well; another theta may have extended it.
    length = request.original_length or configuration.meant_length
    return {key: replace(rope, original_length=length) for key, rope in found.items()}


def describe_scaling(rope: Rope) -> str:
    """Returns a configuration's scaling in words: ``yarn x32 of 4096``."""
    factor = rope.scaling.get("factor")
    times = f" x{factor:g}" if isinstance(factor, (int, float)) and factor <= LONGEST else ""
    return f"{cut(str(rope.scaling.get('rope_type', 'default')), 60)}{times} of {rope.original_length}"


def _ground(rope: Rope, request: Request) -> Rope:
    if not rope.is_scaled:
        return rope
    if request.replace_scaling:
        return _unscaled(rope, request)
    if request.on_top:
        return _composed(rope)
    original = f"its original {rope.original_length} tokens" if _is_recorded(rope) else "the original_length you give"
    raise ConfigError(
        f"this model is already scaled ({describe_scaling(rope)}); replace the scaling, which computes from "
        f"{original}, or compose with it",
        "replace_scaling",
        "on_top",
        "original_length",
    )


def _unscaled(rope: Rope, request: Request) -> Rope:
    """Returns the geometry without its scaling."""
    if not (_is_recorded(rope) or request.original_length):
        raise ConfigError(
            f"this model is scaled by {rope.scaling['rope_type']} and does not record the length it was trained at; "
            "give the original length",
            "original_length",
        )
    partial = {key: value for key, value in rope.scaling.items() if key == "partial_rotary_factor"}
    kind = "proportional" if rope.rotated_pairs is not None else "default"
    return replace(rope, scaling={"rope_type": kind, "rope_theta": rope.theta, **partial})


def _composed(rope: Rope) -> Rope:
    """Returns the geometry with the table of its scaling, for further scaling on top."""
    if length_dependent(from_rope_parameters(rope)[0]):
        raise ConfigError(
            f"this model's scaling ({describe_scaling(rope)}) changes with the length, so there is no one table to "
            "build on; replace the scaling",
            "replace_scaling",
        )
    table = stock_table(rope, rope.max_length)
    return replace(rope, table=tuple(table.inv_freq), table_scale=table.attention_scale)


def _is_recorded(rope: Rope) -> bool:
    """Whether a scaled model's configuration records its trained length."""
    return bool(rope.scaling.get("original_max_position_embeddings")) or rope.original_length != rope.max_length
