"""Chooses the layer types that a schedule changes."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from ..configs.class_defaults import ALL_LAYERS
from ..configs.configuration import Configuration
from ..errors import ConfigError, ScheduleError
from ..output.formatting import brief, listed
from ..schedules.reading.specs import Spec, parse


def choose(spec: object, configuration: Configuration, layers: str) -> dict[str, Spec]:
    """Returns the spec of each layer type; layer types that stay ``as-is`` are left out.

    Raises:
        ScheduleError: it cannot be read, or names layer types that the model does not have.
        ConfigError: ``layers`` does, or the layers that it stands for do not rotate.
    """
    parsed = parse(spec)
    if not isinstance(parsed, Mapping):
        return {} if parsed.text == "as-is" else dict.fromkeys(_layer_types(layers, configuration), parsed)
    for key in parsed:
        if ALL_LAYERS in configuration.ropes:
            raise ScheduleError(
                f"this model keeps one table for all its layers, so {key} cannot have a schedule of its own; give one"
            )
        if key not in configuration.ropes:
            raise ScheduleError(
                f"this model has no layer type {brief(key)} that rotates; it has {listed(configuration.ropes)}"
            )
    return {key: part for key, part in parsed.items() if part.text != "as-is"}


def is_windowed(layer_type: str) -> bool:
    """Whether layers of this type see only a window of the text, by its name."""
    # "main" is DeepSeek-V4's name for its layers without a compressor.
    return any(word in layer_type for word in ("sliding", "local", "chunked")) or layer_type == "main"


def window_of(configuration: Configuration, layer_type: str) -> int | None:
    """Returns how many tokens back the layers of a type see; None where that is the whole text, or not stated."""
    if not is_windowed(layer_type):
        return None
    window = configuration.default_of(configuration.family.window or "sliding_window")
    return window if isinstance(window, int) and not isinstance(window, bool) and window > 0 else None


def _layer_types(layers: str, configuration: Configuration) -> list[str]:
    """Returns the layer types meant by ``full``, ``all`` or a layer type."""
    ropes = configuration.ropes
    if layers == "all":
        return list(ropes)
    if layers in ropes:
        return [layers]
    if layers != "full":
        raise _no_layers(layers, list(ropes))
    window = configuration.family.window
    full = [key for key in ropes if not is_windowed(key)]
    if (window and configuration.default_of(window)) or not full or _only_windowed_rotate(configuration):
        raise ConfigError(
            f"the full-attention layers of {configuration.model_type} do not rotate, and changing those that see a "
            "window of the text does not extend the context; choose all layers to change them all the same",
            "layers",
        )
    return full


def _only_windowed_rotate(configuration: Configuration) -> bool:
    """Whether a list per layer (0: no rotation) leaves only layers that see a window (Granite SWA, SmolLM 3)."""
    section = configuration.section
    rotating = section.get("layer_rope_theta") or section.get("no_rope_layers")
    kinds = section.get("layer_types")
    if not (isinstance(rotating, list) and isinstance(kinds, list) and len(rotating) == len(kinds)):
        return False
    return {is_windowed(str(kind)) for kind, theta in zip(kinds, rotating) if theta} == {True}


def _no_layers(layers: str, known: list[str]) -> ConfigError:
    """Makes the error for an unknown layer type, with the nearest name as a suggestion."""
    if ALL_LAYERS in known:
        return ConfigError(
            f"this model keeps one table for every layer, so {brief(layers)} cannot be changed alone; change all",
            "layers",
        )
    words = [*known, "full", "all"]
    begun = [word for word in words if word.startswith(layers)] if layers else []
    close = begun or difflib.get_close_matches(layers, words, n=1)
    meant = f"did you mean {brief(close[0])}? It has" if close else "it has"
    return ConfigError(f"this model has no layers {brief(layers)}; {meant} {listed(known)} (or full, or all)")
