"""llama.cpp: what its converter writes into the GGUF, and what its flags can say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

from ..rope import ALL_LAYERS
from ..schedules.yarn import temperature
from .facts import Difference, How, Layers
from .serving import Command, Serving, shell

NAME, VERSION = "llama.cpp", "0c1e5709 (October 2026)"

CARRIES_LISTS = ("phi3", "phimoe", "minicpm", "minicpm3")
"""Types for which the converter writes per-pair factors from a longrope configuration."""

CARRIES_LLAMA3 = tuple(
    "apertus arcee exaone4 exaone_moe falcon_h1 granite granitemoe granitemoehybrid llama llama4_text mistral".split()
)
"""Types whose architecture loads the ``rope_freqs`` that the converter writes for llama3."""


FLAGS = {"default": "none", "linear": "linear", "yarn": "yarn"}
"""Rope types that the command line can say, and what it calls them."""


def how(layers: Layers, field: str) -> How:
    """Its code was read."""
    return "source"


def serve(serving: Serving) -> list[Command]:
    """``llama-server`` with flags, where they can say it; nothing where they cannot."""
    gguf = f"{PurePath(serving.model).name}.gguf"
    words = ["llama-server", "-m", gguf, "-c", str(serving.length)]
    told = flags(serving)
    return [] if told is None else [Command("sh", " ".join([shell(*words), *told]))]


def flags(serving: Serving) -> list[str] | None:
    """The rotary part of a llama.cpp command line; None where it has no words for this."""
    layers = serving.layers[0]
    if layers.key != ALL_LAYERS or layers.kind not in FLAGS:
        return None
    parameters = layers.parameters
    told = ["--rope-scaling", FLAGS[layers.kind], "--rope-freq-base", f"{parameters['rope_theta']:.10g}"]
    if layers.kind != "default":
        told += ["--rope-scale", f"{parameters['factor']:.10g}"]
    if layers.kind == "yarn":
        told += ["--yarn-orig-ctx", str(layers.rope.original_length), *_betas(parameters)]
    return told


def _betas(parameters: Mapping[str, Any]) -> list[str]:
    """The flags of a ramp that is not llama.cpp's own, 32 to 1."""
    usual = {"--yarn-beta-fast": ("beta_fast", 32.0), "--yarn-beta-slow": ("beta_slow", 1.0)}
    given = {flag: parameters.get(key) or default for flag, (key, default) in usual.items()}
    return [word for flag, value in given.items() if value != usual[flag][1] for word in (flag, f"{value:.10g}")]


def differences(layers: Layers) -> Iterator[Difference]:
    """What llama.cpp does otherwise for this kind of layer, when the folder is converted to GGUF."""
    of_kind = _BY_KIND.get(layers.kind)
    if of_kind is not None:
        yield from of_kind(layers)


def _longrope(layers: Layers) -> Iterator[Difference]:
    if layers.model_type not in CARRIES_LISTS:
        text = "its converter drops per-pair factors for this architecture, silently leaving base RoPE"
        yield Difference("frequencies", "dropped", "base RoPE", text)
    if list(layers.parameters["short_factor"]) != list(layers.parameters["long_factor"]):
        text = "choose{s} the short or the long list once, by the engine's maximum length"
        yield Difference("switch", "recomputed", "once, by the context's size (-c)", text)


def _yarn(layers: Layers) -> Iterator[Difference]:
    parameters = layers.parameters
    usual = temperature(parameters["factor"])
    scale = parameters.get("attention_factor", usual)
    if scale != usual:
        text = f"recompute{{s}} the attention factor ({usual:.4g} instead of {scale:.4g})"
        yield Difference("attention factor", "recomputed", f"{usual:.6g}", text)
    if parameters.get("mscale") and parameters.get("mscale_all_dim"):
        text = "recomputes the attention factor from mscale_all_dim"
        yield Difference("attention factor", "recomputed", "from mscale_all_dim", text)
    if not parameters.get("truncate", True):
        yield Difference("truncate", "dropped", "true", "always round{s} the ramp to whole pairs (truncate = true)")


def _dynamic(layers: Layers) -> Iterator[Difference]:
    yield Difference("switch", "dropped", "base RoPE", "has no dynamic scaling and uses base RoPE")


def _llama3(layers: Layers) -> Iterator[Difference]:
    if layers.model_type not in CARRIES_LLAMA3:
        text = "does not apply llama3 scaling to this architecture and uses base RoPE"
        yield Difference("frequencies", "dropped", "base RoPE", text)
    elif layers.is_partial:
        head, turning = layers.rope.head_dim, layers.rope.rotary_dim
        text = f"its converter spreads llama3 scaling over all {head} coordinates of a head, though {turning} rotate"
        yield Difference("frequencies", "recomputed", f"over {head} coordinates instead of {turning}", text)


def _proportional(layers: Layers) -> Iterator[Difference]:
    if layers.parameters.get("factor", 1) != 1:
        yield Difference("factor", "dropped", "1", "ignore{s} the factor of proportional RoPE")
    if not layers.was_made_proportional:  # no converter expects it then
        text = "does not know proportional RoPE for this architecture"
        yield Difference("frequencies", "unsupported", "the converter stops", text)


_BY_KIND = {
    "longrope": _longrope,
    "yarn": _yarn,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "proportional": _proportional,
}
