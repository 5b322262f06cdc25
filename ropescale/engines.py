"""Where a serving engine would compute something else than what was asked.

What is said of transformers (4.45 to 5.23) was seen by running it. What is said of vLLM 0.33.0, llama.cpp of October
2026 and mlx-lm of autumn 2026 comes from reading them, and partly from running their rotary code alone; no model was
served with them. Of :data:`_TURN_NEIGHBOURS`, glm4 and cohere2 are listed by kinship.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .plans import Plan
from .rope import ALL_LAYERS, Rope, default_of, text_section

_LLAMA_CPP_CARRIES_LISTS = ("phi3", "phimoe", "minicpm", "minicpm3")
"""Types for which llama.cpp's converter writes per-pair factors from a longrope configuration."""

_LLAMA_CPP_CARRIES_LLAMA3 = tuple(
    "apertus arcee exaone4 exaone_moe falcon_h1 granite granitemoe granitemoehybrid llama llama4_text mistral".split()
)
"""Types whose llama.cpp architecture loads the ``rope_freqs`` that its converter writes for llama3."""

_TRANSFORMERS_4_REFUSES_LISTS = ("olmo", "olmo2")
_TRANSFORMERS_4_IGNORES_LISTS = ("nemotron",)

_TURN_NEIGHBOURS = ("cohere", "cohere2", "ernie4_5", "glm", "glm4")
"""Types whose pairs are neighbours: vLLM's longrope refuses some, and turns the wrong pairs of the others."""


@dataclass(frozen=True)
class _Layers:
    """What was saved for one kind of layer, as an engine reads it."""

    key: str
    parameters: Mapping[str, Any]
    section: Mapping[str, Any]
    rope: Rope
    length: int

    @property
    def kind(self) -> str:
        return str(self.parameters["rope_type"])

    @property
    def model_type(self) -> str:
        return str(self.section.get("model_type"))

    @property
    def is_mla(self) -> bool:
        return bool(default_of(self.section, "qk_rope_head_dim"))


def engine_warnings(plan: Plan) -> list[str]:
    """One sentence per engine and difference; empty where all compute what was asked."""
    section = text_section(plan.config)
    found: list[str] = []
    for key in plan.schedules:
        parameters = section["rope_parameters"] if key == ALL_LAYERS else section["rope_parameters"][key]
        layers = _Layers(key, parameters, section, plan.ropes[key], plan.length)
        found += [text for text in _for(layers) if text not in found]
    return found


def _for(layers: _Layers) -> Iterator[str]:
    of_kind = _BY_KIND.get(layers.kind)
    if of_kind is not None:
        yield from of_kind(layers)
    if layers.is_mla and layers.kind not in ("default", "yarn"):
        yield f"vLLM: overwrites {layers.kind} with its own deepseek_yarn on MLA models; serve this with transformers"
    yield from _transformers_4(layers)
    if layers.model_type == "gpt_oss" and layers.kind != "yarn":
        yield "vLLM: is hard-wired to yarn for gpt-oss and will not use this table"


def _transformers_4(layers: _Layers) -> Iterator[str]:
    kind, model_type = layers.kind, layers.model_type
    if "rope_scaling" not in layers.section or layers.key not in (ALL_LAYERS, "full_attention"):
        where = "" if layers.key == ALL_LAYERS else f" ({layers.key})"
        yield f"transformers 4: has no keys for a scaled {model_type}{where}; load it with transformers 5"
    elif kind == "longrope" and model_type in _TRANSFORMERS_4_REFUSES_LISTS:
        yield f"transformers 4: refuses per-pair factors for {model_type}; load it with transformers 5"
    elif kind == "longrope" and model_type in _TRANSFORMERS_4_IGNORES_LISTS:
        yield f"transformers 4: ignores rope_scaling for {model_type}; load it with transformers 5"
    elif kind == "proportional":
        yield "transformers 4: does not know proportional RoPE and stops with a KeyError; load it with transformers 5"


def _longrope(layers: _Layers) -> Iterator[str]:
    if layers.model_type not in _LLAMA_CPP_CARRIES_LISTS:
        yield "llama.cpp: its converter drops per-pair factors for this architecture, silently leaving base RoPE"
    if layers.model_type in _TURN_NEIGHBOURS:
        yield f"vLLM: cannot turn the pairs of {layers.model_type} by per-pair factors; serve it with transformers"
    elif layers.length > layers.rope.original_length and not layers.is_mla:
        yield f"vLLM: serves the original length unless told otherwise; pass --max-model-len {layers.length}"
    if list(layers.parameters["short_factor"]) != list(layers.parameters["long_factor"]):
        yield "vLLM and llama.cpp: choose the short or the long list once, by the engine's maximum length"
        yield "mlx-lm and transformers 4.45: always use the long list"


def _yarn(layers: _Layers) -> Iterator[str]:
    from .schedules.yarn import temperature

    parameters = layers.parameters
    usual = temperature(parameters["factor"])
    scale = parameters.get("attention_factor", usual)
    if scale != usual:
        yield f"llama.cpp and mlx-lm: recompute the attention factor ({usual:.4g} instead of {scale:.4g})"
    if parameters.get("mscale") and parameters.get("mscale_all_dim"):
        yield "llama.cpp: recomputes the attention factor from mscale_all_dim"
    if not parameters.get("truncate", True):
        yield "llama.cpp and mlx-lm: always round the ramp to whole pairs (truncate = true)"
    yield from _yarn_in_vllm(layers, scale)
    yield "transformers before 4.51: puts max_position_embeddings into the ramp; use 4.51 or later"


def _yarn_in_vllm(layers: _Layers, scale: float) -> Iterator[str]:
    if layers.is_mla and scale == 1:
        yield "vLLM: takes an attention factor of 1 on MLA models for deepseek_llama_scaling, which is not yarn's scale"
    if "mrope_section" in layers.parameters:
        length = layers.rope.original_length
        yield f"vLLM: computes the ramp of a model with mrope from {4 * length} trained tokens instead of {length}"


def _dynamic(layers: _Layers) -> Iterator[str]:
    yield "vLLM: computes one static table for its maximum length, which without max_trained_positions is base RoPE"
    yield "llama.cpp: has no dynamic scaling and uses base RoPE"
    yield "transformers: keeps state between calls, so results depend on earlier ones; cached keys keep old angles"


def _llama3(layers: _Layers) -> Iterator[str]:
    if layers.model_type not in _LLAMA_CPP_CARRIES_LLAMA3:
        yield "llama.cpp: does not apply llama3 scaling to this architecture and uses base RoPE"
    elif layers.rope.rotary_dim != layers.rope.head_dim:
        yield (
            f"llama.cpp: its converter spreads llama3 scaling over all {layers.rope.head_dim} coordinates of a head, "
            f"though {layers.rope.rotary_dim} rotate"
        )


def _linear(layers: _Layers) -> Iterator[str]:
    yield "vLLM: multiplies max_position_embeddings by the factor itself; do not raise it by hand"


def _proportional(layers: _Layers) -> Iterator[str]:
    if not layers.parameters.get("partial_rotary_factor", 1.0):
        yield "vLLM: refuses proportional RoPE with partial_rotary_factor 0; serve it with transformers"
    if layers.rope.rotated_pairs is None:  # the makers had no proportional RoPE, so no converter expects it
        yield "llama.cpp: does not know proportional RoPE for this architecture"
    if layers.parameters.get("factor", 1) != 1:
        yield "vLLM and llama.cpp: ignore the factor of proportional RoPE"


_BY_KIND = {
    "longrope": _longrope,
    "yarn": _yarn,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "linear": _linear,
    "proportional": _proportional,
}
