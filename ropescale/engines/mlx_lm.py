"""mlx-lm: only what it does otherwise, for the warnings; ``ropescale export`` has no command for it."""

from __future__ import annotations

from collections.abc import Iterator

from ..schedules.yarn import temperature
from .facts import Difference, How, Layers

NAME, VERSION = "mlx-lm", "d78bf58e (autumn 2026)"


def how(layers: Layers, field: str) -> How:
    """Its code was read."""
    return "source"


def differences(layers: Layers) -> Iterator[Difference]:
    """What mlx-lm does otherwise for this kind of layer."""
    parameters = layers.parameters
    if layers.kind == "longrope" and list(parameters["short_factor"]) != list(parameters["long_factor"]):
        yield Difference("switch", "dropped", "the long list, always", "always use{s} the long list")
    if layers.kind == "yarn":
        yield from _yarn(layers)


def _yarn(layers: Layers) -> Iterator[Difference]:
    usual = temperature(layers.parameters["factor"])
    scale = layers.parameters.get("attention_factor", usual)
    if scale != usual:
        text = f"recompute{{s}} the attention factor ({usual:.4g} instead of {scale:.4g})"
        yield Difference("attention factor", "recomputed", f"{usual:.6g}", text)
    if not layers.parameters.get("truncate", True):
        yield Difference("truncate", "dropped", "true", "always round{s} the ramp to whole pairs (truncate = true)")
