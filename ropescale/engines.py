"""Where a serving engine would compute something else than what was asked.

Each warning was read in the engine's source or seen by running it: vLLM 0.33.0, llama.cpp of October 2026,
mlx-lm of autumn 2026, transformers 4.45 to 5.23.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .plans import Plan
from .rope import ALL_LAYERS, default_of, text_section

_LLAMA_CPP_CARRIES_LISTS = ("phi3", "phimoe", "minicpm", "minicpm3")
"""Types for which llama.cpp's converter writes per-pair factors from a longrope configuration."""

_LLAMA_CPP_CARRIES_LLAMA3 = tuple(
    "apertus arcee exaone4 exaone_moe falcon_h1 granite granitemoe granitemoehybrid llama llama4_text mistral".split()
)
"""Types whose llama.cpp architecture loads the ``rope_freqs`` that its converter writes for llama3."""

_TRANSFORMERS_4_REFUSES_LISTS = ("olmo", "olmo2")
_TRANSFORMERS_4_IGNORES_LISTS = ("nemotron",)


def engine_warnings(plan: Plan) -> list[str]:
    """One sentence per engine and difference; empty where all compute what was asked."""
    section = text_section(plan.config)
    found: list[str] = []
    for key in plan.schedules:
        parameters = section["rope_parameters"] if key == ALL_LAYERS else section["rope_parameters"][key]
        found += [text for text in _for(key, parameters, section) if text not in found]
    return found


def _for(key: str, parameters: Mapping[str, Any], section: Mapping[str, Any]) -> Iterator[str]:
    kind, model_type = parameters["rope_type"], str(section.get("model_type"))
    yield from _by_type(kind, parameters, model_type)
    if default_of(section, "qk_rope_head_dim") and kind not in ("default", "yarn"):
        yield f"vLLM: overwrites {kind} with its own deepseek_yarn on MLA models; serve this one with transformers"
    yield from _transformers_4(key, kind, section, model_type)
    if model_type == "gpt_oss" and kind != "yarn":
        yield "vLLM: is hard-wired to yarn for gpt-oss and will not use this table"


def _transformers_4(key: str, kind: str, section: Mapping[str, Any], model_type: str) -> Iterator[str]:
    if "rope_scaling" not in section or key not in (ALL_LAYERS, "full_attention"):
        where = "" if key == ALL_LAYERS else f" ({key})"
        yield f"transformers 4: has no keys for a scaled {model_type}{where}; load it with transformers 5"
    elif kind == "longrope" and model_type in _TRANSFORMERS_4_REFUSES_LISTS:
        yield f"transformers 4: refuses per-pair factors for {model_type}; load it with transformers 5"
    elif kind == "longrope" and model_type in _TRANSFORMERS_4_IGNORES_LISTS:
        yield f"transformers 4: ignores rope_scaling for {model_type}; load it with transformers 5"


def _by_type(kind: str, parameters: Mapping[str, Any], model_type: str) -> Iterator[str]:
    if kind == "longrope":
        if model_type not in _LLAMA_CPP_CARRIES_LISTS:
            yield "llama.cpp: its converter drops per-pair factors for this architecture, silently leaving base RoPE"
        if list(parameters["short_factor"]) != list(parameters["long_factor"]):
            yield "vLLM and llama.cpp: choose the short or the long list once, by the engine's maximum length"
    elif kind == "yarn":
        yield from _yarn(parameters)
    elif kind == "dynamic":
        yield "vLLM: computes one static table for its maximum length, which without max_trained_positions is base RoPE"
        yield "llama.cpp: has no dynamic scaling and uses base RoPE"
        yield "transformers: keeps state between calls, so results depend on earlier ones; cached keys keep old angles"
    elif kind == "llama3" and model_type not in _LLAMA_CPP_CARRIES_LLAMA3:
        yield "llama.cpp: does not apply llama3 scaling to this architecture and uses base RoPE"
    elif kind == "linear":
        yield "vLLM: multiplies max_position_embeddings by the factor itself; do not raise it by hand"
    elif kind == "proportional" and parameters.get("factor", 1) != 1:
        yield "vLLM and llama.cpp: ignore the factor of proportional RoPE"


def _yarn(parameters: Mapping[str, Any]) -> Iterator[str]:
    from .schedules.yarn import temperature

    usual = temperature(parameters["factor"])
    scale = parameters.get("attention_factor", usual)
    if scale != usual:
        yield f"llama.cpp and mlx-lm: recompute the attention factor ({usual:.4g} instead of {scale:.4g})"
    if parameters.get("mscale") and parameters.get("mscale_all_dim"):
        yield "llama.cpp: recomputes the attention factor from mscale_all_dim"
    if not parameters.get("truncate", True):
        yield "llama.cpp and mlx-lm: always round the ramp to whole pairs (truncate = true)"
    yield "transformers before 4.51: puts max_position_embeddings into the ramp; use 4.51 or later"
