"""Writes a scaling into a configuration, for transformers 5 and 4 alike."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .class_defaults import ALL_LAYERS, PARTIAL_NAMES, THETA_NAMES
from .configuration import Configuration
from .families import Family
from .section import Section

_SCALING_KEYS = frozenset(
    "rope_type type factor original_max_position_embeddings attention_factor attn_factor beta_fast beta_slow mscale "
    "mscale_all_dim truncate extrapolation_factor short_factor long_factor short_mscale long_mscale low_freq_factor "
    "high_freq_factor alpha finetuned max_position_embeddings".split()
)
"""Keys that belong to a scaling; every other key of ``rope_parameters`` is the model's own and is kept."""

_TEMPERATURE = "llama_4_scaling_beta"
"""Ministral 3 and Mistral 4 scale queries by the position over the trained length, which they read beside this key."""

ONLY_V5_KEYS = (
    "config.json has rope_parameters alone; transformers 4 does not read them and would use its default theta without "
    "scaling; patching with the schedule as-is writes its keys"
)
"""What to say where :func:`unread_by_v4` holds."""


@dataclass(frozen=True)
class Scaling:
    """The form that a schedule takes in a configuration.

    Attributes:
        parameters: v5 rope parameters per layer type that changes (the model's own keys not included).
        max_length: the new ``max_position_embeddings``.
        original_length: what ``original_max_position_embeddings`` becomes; None leaves it.
    """

    parameters: Mapping[str, Mapping[str, Any]]
    max_length: int
    original_length: int | None


def unread_by_v4(configuration: Configuration) -> bool:
    """Whether transformers 4, which does not read ``rope_parameters``, would rotate by others."""
    section, reaches = configuration.section, configuration.text.v4
    if "rope_parameters" not in section:
        return False
    no_theta = not any(name in section for name in THETA_NAMES)
    return any(
        (rope.is_scaled and key in reaches.get("rope_scaling", ()) and section.get("rope_scaling") is None)
        or (key == ALL_LAYERS and no_theta and rope.theta != 10000)
        for key, rope in configuration.ropes.items()
    )


def in_both_dialects(configuration: Configuration) -> dict[str, Any]:
    """Returns a copy of a configuration that says the same to transformers 4 and 5."""
    original = max(rope.original_length for rope in configuration.ropes.values()) if configuration.is_scaled else None
    return write_rope(configuration, Scaling({}, configuration.max_length, original))


def write_rope(configuration: Configuration, scaling: Scaling) -> dict[str, Any]:
    """Returns a copy of a configuration that carries ``scaling``.

    Writes ``rope_parameters`` (v5) and ``rope_scaling`` with ``rope_theta`` beside it (v4) so that they agree;
    every other key, and every key of the rope parameters that is the model's own, is kept.
    """
    text = configuration.text
    merged = {key: _merged(old, scaling.parameters.get(key)) for key, old in configuration.parameters.items()}
    section = copy.deepcopy(dict(configuration.section))
    stated = text.new if text.is_nested else text.default_parameters  # layer types that do not rotate, too
    section["rope_parameters"] = {**stated, **merged} if text.per_type else merged[ALL_LAYERS]
    own = text.name_of("max_position_embeddings")
    if own != "max_position_embeddings":  # either name may be stated, and either may win
        section.pop("max_position_embeddings", None)
    section[own] = scaling.max_length
    if scaling.original_length is not None:
        section["original_max_position_embeddings"] = scaling.original_length
    _write_v4(section, merged, text)
    _write_oddities(section, merged, text)
    return (
        {**copy.deepcopy(dict(configuration.raw)), "text_config": section} if configuration.is_multimodal else section
    )


def _merged(old: Mapping[str, object], new: Mapping[str, object] | None) -> dict[str, object]:
    """Puts a new scaling over the keys that are the model's own."""
    if new is None:
        return dict(old)
    own = {key: value for key, value in old.items() if key not in _SCALING_KEYS}
    if _TEMPERATURE in own:
        own |= {key: old[key] for key in ("original_max_position_embeddings",) if key in old}
    return {"rope_type": new["rope_type"], **own, **new}


def _write_v4(section: dict[str, object], merged: Mapping[str, Mapping[str, object]], text: Section) -> None:
    """Writes the same in v4's keys where they exist, and drops stale ones."""
    stated = {name for name in (*THETA_NAMES, *PARTIAL_NAMES, "rope_scaling") if section.pop(name, None) is not None}
    scaled = text.v4.get("rope_scaling", [])
    known = scaled in ([ALL_LAYERS], ["full_attention"])  # v4 had no other nested types
    keys = dict.fromkeys(THETA_NAMES, "rope_theta") | dict.fromkeys(PARTIAL_NAMES, "partial_rotary_factor")
    for name, key in keys.items():
        first = next((merged[kind] for kind in text.v4.get(name, ()) if kind in merged), {})
        if key in first and (known or name in stated):
            section[name] = first[key]
    if known and scaled[0] in merged:
        section["rope_scaling"] = _v4_scaling(merged[scaled[0]], text.family)


def _v4_scaling(parameters: Mapping[str, object], family: Family) -> dict[str, object] | None:
    """Returns ``rope_scaling``: the parameters without what v4 keeps at the top level; null for plain RoPE."""
    kind = str(parameters["rope_type"])
    if kind in family.v4_keys:
        return {"type": kind} | {key: parameters[key] for key in family.v4_keys[kind]}
    beside = {"rope_theta"} | ({"partial_rotary_factor"} if kind != "proportional" else set())  # read here by mlx-lm
    rest = {key: value for key, value in parameters.items() if key not in beside}
    return None if rest == {"rope_type": "default"} else rest


def _write_oddities(section: dict[str, object], merged: Mapping[str, Mapping[str, object]], text: Section) -> None:
    """Writes further keys that transformers needs, or of which it keeps a second copy."""
    is_null = "head_dim" in section or "head_dim" in text.defaults or text.family.null_head_dim_in_v4
    if is_null and text.get("head_dim") is None:  # transformers' rope functions fail on null
        section["head_dim"] = text.head_dim(ALL_LAYERS, {})
    per_pair = any(parameters["rope_type"] == "longrope" for parameters in merged.values())
    if text.defaults.get("head_dims") and per_pair:  # its longrope check reads head_dim, which is not unique here
        section["allow_global_per_layer_attribute_access"] = True
    attention = section.get("attn_config")
    if isinstance(attention, Mapping) and attention.get("rope_theta") is not None:  # DBRX, for transformers 4
        section["attn_config"] = {**attention, "rope_theta": merged[ALL_LAYERS]["rope_theta"]}
    thetas = section.get("layer_rope_theta")
    if isinstance(thetas, list):  # Granite's SWA models; 0 marks a layer that does not rotate
        section["layer_rope_theta"] = [merged[ALL_LAYERS]["rope_theta"] if there else there for there in thetas]
