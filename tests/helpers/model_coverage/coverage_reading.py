"""Every way in which a configuration file may give its rotary embedding, for reading it as transformers does."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from ropescale.configs import class_defaults

SWITCHES: dict[str, dict[str, Any]] = {
    "granitemoehybrid": {"position_embedding_type": "rope"},
    "zamba2": {"use_mem_rope": True},
}
"""Types that rotate only when their configuration says so."""

_LINEAR = {"rope_type": "linear", "factor": 3.0}
_YARN = {"rope_type": "yarn", "factor": 3.0, "original_max_position_embeddings": 512}
_STATED = {"rope_type": "default", "rope_theta": 7e4}

REFUSALS = (
    "make them agree",
    "rotates full heads, and transformers cannot run this",
    "does not read rope_scaling",
    "does not fill in",
    "only reads rope_type there",
    "the flat rope_parameters in this configuration would be ignored by transformers",
)
"""Words of the errors that a file may meet which some program reads otherwise than another."""


def ways(model_type: str) -> Iterator[dict[str, Any]]:
    """Configurations of one type, of the class's default sizes: what stands inside, times what stands beside it."""
    for inside in _inside(class_defaults.load()[model_type]):
        for beside in _beside():
            start = {"model_type": model_type, **SWITCHES.get(model_type, {})}
            yield copy.deepcopy({**start, **inside, **beside})


def _inside(entry: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """``rope_parameters`` as the class keeps them, flat, in part or not at all; or ``rope_scaling``."""
    keys = _layer_types(entry)
    yield {}
    yield {"rope_parameters": None, "rope_scaling": None}
    for parameters in ({"rope_type": "default"}, _STATED, {**_STATED, "partial_rotary_factor": 0.5}, _LINEAR):
        nested = {key: parameters if turns else None for key, turns in (keys or {}).items()}
        yield {"rope_parameters": nested or parameters}
    for scaling in ({"rope_type": "default"}, {"type": "linear", "factor": 3.0}, _LINEAR, _YARN):
        yield {"rope_scaling": scaling}
    if keys is not None:
        yield {"rope_parameters": _LINEAR}
        turning = sorted(key for key, turns in keys.items() if turns)
        yield from ({"rope_parameters": {key: _LINEAR for key in turning if key != left}} for left in turning[:-1])


def _layer_types(entry: Mapping[str, Any]) -> dict[str, bool] | None:
    """Whether each layer type that has a table of its own rotates, or None where there is one table for all."""
    default = entry["rope_parameters"]
    if default and not class_defaults.is_nested(default):
        return None
    return {key: not default or default[key] is not None for key in default or entry["layer_types"]}


def _beside() -> Iterator[dict[str, Any]]:
    """Keys of transformers 4, at the top level."""
    yield {}
    yield from ({name: 7e5} for name in class_defaults.THETA_NAMES)
    yield from ({name: 0.5} for name in class_defaults.PARTIAL_NAMES)
    yield {"rope_theta": 7e5, "partial_rotary_factor": 0.5}
