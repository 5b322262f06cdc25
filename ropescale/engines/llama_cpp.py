"""llama.cpp: what its converter writes into the GGUF, and what its flags can say."""

from __future__ import annotations

from collections.abc import Iterator

from ..schedules.yarn import temperature
from .facts import Difference, Layers

NAME, VERSION = "llama.cpp", "0c1e5709 (October 2026)"

CARRIES_LISTS = ("phi3", "phimoe", "minicpm", "minicpm3")
"""Types for which the converter writes per-pair factors from a longrope configuration."""

CARRIES_LLAMA3 = tuple(
    "apertus arcee exaone4 exaone_moe falcon_h1 granite granitemoe granitemoehybrid llama llama4_text mistral".split()
)
"""Types whose architecture loads the ``rope_freqs`` that the converter writes for llama3."""


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
    if layers.rope.rotated_pairs is None:  # the makers had no proportional RoPE, so no converter expects it
        text = "does not know proportional RoPE for this architecture"
        yield Difference("frequencies", "unsupported", "the converter stops", text)


_BY_KIND = {
    "longrope": _longrope,
    "yarn": _yarn,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "proportional": _proportional,
}
