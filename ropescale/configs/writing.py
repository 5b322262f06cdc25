"""Writes a scaling into a configuration.

With :mod:`ropescale.configs.reading` the only file that knows transformers 5's ``rope_parameters`` from
transformers 4's ``rope_theta`` + ``rope_scaling``.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from . import class_defaults
from .reading import (
    _NULL_HEAD_DIM_IN_V4,
    _SCALING_KEYS,
    _TEMPERATURE,
    _THREE_KEYS,
    _TWO_KEYS,
    ALL_LAYERS,
    _Reader,
    text_section,
)

# ---------------------------------------------------------------------------------------------------------
# Writing a configuration


@dataclass(frozen=True)
class Scaling:
    """What a schedule becomes in a configuration.

    Attributes:
        parameters: v5 rope parameters per layer type that changes (the model's own keys not included).
        max_length: the new ``max_position_embeddings``.
        original_length: what ``original_max_position_embeddings`` becomes.
    """

    parameters: Mapping[str, Mapping[str, Any]]
    max_length: int
    original_length: int


def write_rope(config: Mapping[str, Any], scaling: Scaling) -> dict[str, Any]:
    """A copy of a configuration that carries ``scaling``, for transformers 5 and 4 alike.

    Writes ``rope_parameters`` (v5) and ``rope_scaling`` with ``rope_theta`` beside it (v4) so that they agree;
    every other key, and every key of the rope parameters that is the model's own, is kept.
    """
    new = copy.deepcopy(dict(config))
    section: dict[str, Any] = dict(text_section(new))
    reader = _Reader(text_section(config))
    merged = {key: _merged(old, scaling.parameters.get(key)) for key, old in reader.parameters().items()}
    section["rope_parameters"] = {**_untouched(reader), **merged} if reader.per_type else merged[ALL_LAYERS]
    own = reader.name_of("max_position_embeddings")
    if own != "max_position_embeddings":  # either name may be there, and either may win
        section.pop("max_position_embeddings", None)
    section[own] = scaling.max_length
    section["original_max_position_embeddings"] = scaling.original_length
    _write_v4(section, merged, reader)
    _write_oddities(section, merged, reader)
    if text_section(config) is config:
        return section
    return {**new, "text_config": section}


def _merged(old: Mapping[str, Any], new: Mapping[str, Any] | None) -> dict[str, Any]:
    """New scaling over the keys that are the model's own."""
    if new is None:
        return dict(old)
    own = {key: value for key, value in old.items() if key not in _SCALING_KEYS}
    if _TEMPERATURE in own:
        own |= {key: old[key] for key in ("original_max_position_embeddings",) if key in old}
    return {"rope_type": new["rope_type"], **own, **new}


def _untouched(reader: _Reader) -> dict[str, Any]:
    """Layer types that are stated and do not rotate, or that no layer of this model has."""
    return dict(reader.new if class_defaults.is_nested(reader.new) else reader.default_parameters)


def _write_v4(section: dict[str, Any], merged: Mapping[str, Mapping[str, Any]], reader: _Reader) -> None:
    """The same in v4's keys where v4 has any; stale ones are dropped."""
    names = [*class_defaults.THETA_NAMES, *class_defaults.PARTIAL_NAMES, "rope_scaling"]
    stated = {name for name in names if section.pop(name, None) is not None}
    scaled = reader.v4.get("rope_scaling", [])
    known = scaled in ([ALL_LAYERS], ["full_attention"])  # v4 had no other nested types
    for names, key in (
        (class_defaults.THETA_NAMES, "rope_theta"),
        (class_defaults.PARTIAL_NAMES, "partial_rotary_factor"),
    ):
        for name in names:
            first = next((merged[kind] for kind in reader.v4.get(name, ()) if kind in merged), {})
            if key in first and (known or name in stated):
                section[name] = first[key]
    if known and scaled[0] in merged:
        section["rope_scaling"] = _v4_scaling(merged[scaled[0]], reader.model_type)


def _v4_scaling(parameters: Mapping[str, Any], model_type: str) -> dict[str, Any] | None:
    """``rope_scaling``: the parameters without what v4 keeps at the top level; null for plain RoPE."""
    if model_type in _THREE_KEYS and parameters["rope_type"] == "longrope":
        return {"type": "longrope"} | {key: parameters[key] for key in ("short_factor", "long_factor")}
    if model_type in _TWO_KEYS and parameters["rope_type"] in ("linear", "dynamic"):
        return {"type": parameters["rope_type"], "factor": parameters["factor"]}
    rest = {key: value for key, value in parameters.items() if key not in ("rope_theta", "partial_rotary_factor")}
    return None if rest == {"rope_type": "default"} else rest


def _write_oddities(section: dict[str, Any], merged: Mapping[str, Mapping[str, Any]], reader: _Reader) -> None:
    """What transformers trips over, or keeps a second copy of."""
    is_null = "head_dim" in reader.defaults or reader.model_type in _NULL_HEAD_DIM_IN_V4
    if is_null and reader.get("head_dim") is None:  # transformers' rope functions cannot read a null
        section["head_dim"] = reader.head_dim(ALL_LAYERS, {})
    per_pair = any(parameters["rope_type"] == "longrope" for parameters in merged.values())
    if reader.defaults.get("head_dims") and per_pair:  # its longrope check asks for the one head_dim there is not
        section["allow_global_per_layer_attribute_access"] = True
    attention = section.get("attn_config")
    if isinstance(attention, Mapping) and attention.get("rope_theta") is not None:  # DBRX, for transformers 4
        section["attn_config"] = {**attention, "rope_theta": merged[ALL_LAYERS]["rope_theta"]}
    if isinstance(section.get("layer_rope_theta"), list):  # Granite's SWA models; 0 marks a layer that does not rotate
        theta = merged[ALL_LAYERS]["rope_theta"]
        section["layer_rope_theta"] = [theta if there else there for there in section["layer_rope_theta"]]
