"""transformers 4: what its versions read from the v4 keys (``rope_theta``, ``rope_scaling``) that are written."""

from __future__ import annotations

from collections.abc import Iterator

from ..rope import ALL_LAYERS
from .facts import Difference, Layers

NAME, VERSION = "transformers 4", "4.51.3, 4.57.1"

REFUSES_LISTS = ("olmo", "olmo2")
IGNORES_LISTS = ("nemotron",)


def differences(layers: Layers) -> Iterator[Difference]:
    """What transformers 4 does otherwise for this kind of layer."""
    parameters = layers.parameters
    yield from _today(layers)
    if layers.kind == "longrope" and list(parameters["short_factor"]) != list(parameters["long_factor"]):
        yield _before("4.45.2", "switch", "the long list, always", "always use{s} the long list", "transformers 4.45")
    if layers.kind == "yarn":
        text = "puts max_position_embeddings into the ramp; use 4.51 or later"
        yield _before("4.45.2", "original length", "max_position_embeddings", text, "transformers before 4.51")


def _before(version: str, field: str, computes: str, warning: str, who: str) -> Difference:
    """What only older versions do: their own line, beside what the current ones do."""
    return Difference(field, "recomputed", computes, warning, who, version=version)


def _today(layers: Layers) -> Iterator[Difference]:
    kind, model_type = layers.kind, layers.model_type
    if "rope_scaling" not in layers.section or layers.key not in (ALL_LAYERS, "full_attention"):
        where = "" if layers.key == ALL_LAYERS else f" ({layers.key})"
        text = f"has no keys for a scaled {model_type}{where}; load it with transformers 5"
        yield Difference("frequencies", "unsupported", "base RoPE", text)
    elif kind == "longrope" and model_type in REFUSES_LISTS:
        text = f"refuses per-pair factors for {model_type}; load it with transformers 5"
        yield Difference("frequencies", "unsupported", "stops with an error", text)
    elif kind == "longrope" and model_type in IGNORES_LISTS:
        text = f"ignores rope_scaling for {model_type}; load it with transformers 5"
        yield Difference("frequencies", "dropped", "base RoPE", text)
    elif kind == "proportional":
        text = "does not know proportional RoPE and stops with a KeyError; load it with transformers 5"
        yield Difference("frequencies", "unsupported", "stops with a KeyError", text)
