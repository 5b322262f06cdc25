"""vLLM: a table computed once, when the engine starts."""

from __future__ import annotations

from collections.abc import Iterator

from ..schedules.yarn import temperature
from .facts import Difference, Layers

NAME, VERSION = "vLLM", "0.33.0"

TURN_NEIGHBOURS = ("cohere", "cohere2", "ernie4_5", "glm", "glm4")
"""Types whose pairs are neighbours: the longrope layer refuses some, and turns the wrong pairs of the others.

glm4 and cohere2 are listed by kinship.
"""


def differences(layers: Layers) -> Iterator[Difference]:
    """What vLLM does otherwise for this kind of layer."""
    of_kind = _BY_KIND.get(layers.kind)
    if of_kind is not None:
        yield from of_kind(layers)
    if layers.is_mla and layers.kind not in ("default", "yarn"):
        text = f"overwrites {layers.kind} with its own deepseek_yarn on MLA models; serve this with transformers"
        yield Difference("frequencies", "unsupported", "deepseek_yarn", text)
    if layers.model_type == "gpt_oss" and layers.kind != "yarn":
        text = "is hard-wired to yarn for gpt-oss and will not use this table"
        yield Difference("frequencies", "unsupported", "yarn", text)


def _longrope(layers: Layers) -> Iterator[Difference]:
    if layers.model_type in TURN_NEIGHBOURS:
        text = f"cannot turn the pairs of {layers.model_type} by per-pair factors; serve it with transformers"
        yield Difference("frequencies", "unsupported", "stops, or turns the wrong pairs", text)
    elif layers.length > layers.rope.original_length and not layers.is_mla:
        text = f"serve{{s}} the original length unless told otherwise; pass --max-model-len {layers.length}"
        yield Difference("max length", "honoured", f"with --max-model-len {layers.length}", text)
    if list(layers.parameters["short_factor"]) != list(layers.parameters["long_factor"]):
        text = "choose{s} the short or the long list once, by the engine's maximum length"
        yield Difference("switch", "recomputed", "once, by the engine's maximum length", text)


def _yarn(layers: Layers) -> Iterator[Difference]:
    scale = layers.parameters.get("attention_factor", temperature(layers.parameters["factor"]))
    if layers.is_mla and scale == 1:
        text = "takes an attention factor of 1 on MLA models for deepseek_llama_scaling, which is not yarn's scale"
        yield Difference("attention factor", "recomputed", "deepseek_llama_scaling", text)
    if "mrope_section" in layers.parameters:
        length = layers.rope.original_length
        text = f"computes the ramp of a model with mrope from {4 * length} trained tokens instead of {length}"
        yield Difference("original length", "recomputed", f"{4 * length}", text)


def _dynamic(layers: Layers) -> Iterator[Difference]:
    text = "computes one static table for its maximum length, which without max_trained_positions is base RoPE"
    yield Difference("switch", "dropped", "base RoPE, one static table", text)


def _linear(layers: Layers) -> Iterator[Difference]:
    text = "multiplies max_position_embeddings by the factor itself; do not raise it by hand"
    yield Difference("max length", "honoured", "max_position_embeddings times the factor", text)


def _proportional(layers: Layers) -> Iterator[Difference]:
    if not layers.parameters.get("partial_rotary_factor", 1.0):
        text = "refuses proportional RoPE with partial_rotary_factor 0; serve it with transformers"
        yield Difference("frequencies", "unsupported", "stops with an error", text)
    if layers.parameters.get("factor", 1) != 1:
        yield Difference("factor", "dropped", "1", "ignore{s} the factor of proportional RoPE")


_BY_KIND = {
    "longrope": _longrope,
    "yarn": _yarn,
    "dynamic": _dynamic,
    "linear": _linear,
    "proportional": _proportional,
}
