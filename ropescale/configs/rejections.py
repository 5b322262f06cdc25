"""Refuses configurations that transformers would silently misread, or fail on without a reason."""

from __future__ import annotations

import json
from collections.abc import Mapping

from ..errors import ConfigError
from ..output.formatting import brief, listed
from . import class_defaults
from .checks import LARGEST_THETA, is_name, number
from .class_defaults import ALL_LAYERS
from .section import Section


def check_section(section: Section) -> None:
    """Refuses a configuration without rotary embeddings, or with rope parameters that would be ignored.

    Raises:
        ConfigError: what is wrong, and how to write it instead.
    """
    _refuse_without_rope(section)
    _refuse_named_by_type(section)
    _refuse_ignored(section)
    stated = section.stated.get("layer_types")
    if stated is not None and not (isinstance(stated, (list, tuple)) and all(map(is_name, stated))):
        raise ConfigError(f"layer_types is {brief(stated)} in the configuration; it must be a list of names")


def _refuse_without_rope(section: Section) -> None:
    model_type, family = section.model_type, section.family
    if family.positions:
        raise ConfigError(
            f"{model_type} {family.positions}; its frequencies cannot be changed through the configuration"
        )
    if family.instead or class_defaults.load().get(model_type, {}) is None:
        why = f" ({family.instead})" if family.instead else ""
        raise ConfigError(f"{model_type} has no rotary position embeddings{why}; there is nothing to scale")
    if family.switch is None:
        return
    name, wanted, default = family.switch
    value = section.stated.get(name, default)
    if value != wanted:
        raise ConfigError(
            f"this {model_type} has no rotary position embeddings: {name} is {json.dumps(value)} in its "
            f"configuration, and it only rotates with {json.dumps(wanted)}; there is nothing to scale"
        )


def _refuse_named_by_type(section: Section) -> None:
    kind = None if "rope_type" in section.old else section.old.get("type")
    if kind not in (None, "default") and section.defaults.get("ignores_type"):
        raise ConfigError(
            f"rope_scaling says type {brief(kind)}, and {section.model_type} only reads rope_type there, so "
            "transformers computes without scaling; write rope_type instead of type, or remove rope_scaling"
        )


def _refuse_ignored(section: Section) -> None:
    model_type = section.model_type
    types = ", ".join(section.default_parameters or section.defaults.get("layer_types", ()))
    if section.per_type and section.new and not section.is_nested and "rope_parameters" not in section.v4:
        raise ConfigError(
            f"{model_type} keeps rope_parameters per layer type ({types}); the flat rope_parameters in this "
            "configuration would be ignored by transformers; put it under the layer type it is meant for"
        )
    if section.is_nested and not section.per_type:
        raise ConfigError(
            f"{model_type} keeps one table for all its layers; the rope_parameters per layer type "
            f"({listed(section.new)}) in this configuration would be ignored; give one flat rope_parameters"
        )
    if section.old and "rope_scaling" not in section.v4:
        raise ConfigError(
            f"{model_type} does not read rope_scaling, which this configuration has; "
            f"write it as rope_parameters{f' under a layer type ({types})' if section.per_type else ''}"
        )


def check_parameters_beside(section: Section, key: str, parameters: Mapping[str, object]) -> None:
    """Refuses two places that disagree on the same number; transformers would silently prefer one."""
    for name, names in (
        ("rope_theta", class_defaults.THETA_NAMES),
        ("partial_rotary_factor", class_defaults.PARTIAL_NAMES),
    ):
        beside, inner = section.beside(key, names), parameters.get(name)
        if beside is not None and inner is not None and inner != beside[1]:
            where = "" if key == ALL_LAYERS else f" for {key}"
            raise ConfigError(
                f"rope_parameters says {name} is {brief(inner)}{where} and {beside[0]} at the top level says "
                f"{brief(beside[1])}; make them agree"
            )


def check_theta(section: Section, theta: object) -> None:
    """Refuses a theta that only part of the layers, or only transformers 4, would use."""
    _refuse_theta_per_layer(section, theta)
    _refuse_theta_of_attention(section, theta)


def _refuse_theta_per_layer(section: Section, theta: object) -> None:
    """Refuses a theta for some layers alone (0: no rotation) in Granite's SWA models, which then use no other."""
    thetas = section.stated.get("layer_rope_theta")
    stated = [value for value in thetas if value and value != theta] if isinstance(thetas, list) else []
    others = {number(value, "layer_rope_theta", most=LARGEST_THETA) for value in stated}
    if others:
        raise ConfigError(
            f"layer_rope_theta gives some layers the theta {min(others)} beside rope_theta {brief(theta)}; "
            "a model with more than one theta in one table cannot be described by one schedule"
        )


def _refuse_theta_of_attention(section: Section, theta: object) -> None:
    """Refuses DBRX's theta in ``attn_config``, where transformers 4 looked for it and transformers 5 does not."""
    part = section.stated.get("attn_config")
    stated = part.get("rope_theta") if isinstance(part, Mapping) else None
    if stated is not None and stated != theta:
        raise ConfigError(
            f"attn_config says rope_theta is {brief(stated)}, and transformers 5 computes with {brief(theta)}, because "
            f"it only reads the top level; write rope_theta {brief(stated)} there"
        )
