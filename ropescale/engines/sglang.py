"""SGLang: rotary layers that began as vLLM's; a table computed when the engine starts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial

from ..configs.class_defaults import ALL_LAYERS
from ..schedules.yarn import temperature
from . import vllm
from .base import (
    Command,
    Difference,
    Engine,
    How,
    Layers,
    Serving,
    base_rope,
    ignores_factor,
    needed_positions,
    one_table,
    option,
    overrides,
    recomputed_scale,
    shell,
    stops,
    wrong_pairs,
)
from .model_code import architecture, code, is_known_for, not_its_own

_MULTIPLIED = ("linear", "dynamic")
"""Rope types whose table is ``factor`` times as long as ``max_position_embeddings``."""


def _how(layers: Layers, field: str) -> How:
    """Returns ``run`` for types and fields whose rotary layer tests run; the code that sets its width was read."""
    by_model = field in ("rotary dim", "partial_rotary_factor") or code("sglang", layers) != "own"
    return "source" if by_model else vllm.rotary_how(layers, field)


def _serve(serving: Serving) -> list[Command]:
    """Returns ``sglang.launch_server``, with changes to the configuration if the folder lacks them."""
    told = _nulled(serving, overrides(_spelled(serving), vllm.positions("sglang", serving, _MULTIPLIED)))
    words = ["python", "-m", "sglang.launch_server", "--model-path", serving.model]
    words += ["--context-length", str(serving.length), *serving.revision, *serving.trusting]
    return [Command("sh", shell(*words, *option("--json-model-override-args", told)))]


def _workaround(layers: Layers) -> str:
    """Returns the advice for a schedule that cannot be served."""
    if code("sglang", layers) != "own":
        return "serve it with transformers"
    if _is_unscaled(layers):
        return "use another rope_theta (ntk, abf), or serve it with transformers"
    return vllm.workaround(layers)


def _spelled(serving: Serving) -> Serving:
    """Returns the same schedule with SGLang's own keys, if needed."""
    if code("sglang", serving.layers[0]) != "own":
        return serving
    return serving.spelled(partial(_own_keys, positions=needed_positions(serving, _MULTIPLIED)))


def _own_keys(layers: Layers, positions: int) -> Mapping[str, object]:
    if layers.kind == "yarn" and not math.isclose(layers.attention_factor, _yarn_scale(layers)):
        correction = layers.attention_factor / _yarn_scale(layers)
        return {**layers.parameters, "attn_factor": layers.parameters.get("attn_factor", 1.0) * correction}
    if layers.kind == "longrope" and not math.isclose(vllm.longrope_scale(layers, positions), layers.attention_factor):
        return vllm.with_mscales(layers)
    return layers.parameters


def _nulled(serving: Serving, told: Mapping[str, object]) -> Mapping[str, object]:
    """Nulls stored keys that must not survive, because SGLang merges flat rope parameters into them."""
    stored, given = serving.stored.section, told.get("rope_parameters")
    before = stored.get("rope_parameters") or stored.get("rope_scaling")
    if not isinstance(given, Mapping) or serving.layers[0].key != ALL_LAYERS or not isinstance(before, Mapping):
        return told
    stale = {key: 1.0 if key == "factor" else None for key in before if key not in (*given, "type")}
    return {**told, "rope_parameters": {**given, **stale}}


def _differences(layers: Layers) -> Iterator[Difference]:
    """Yields the differences of SGLang for this kind of layer."""
    if code("sglang", layers) == "own":
        yield from _in_its_own_code(layers)
    else:
        yield from not_its_own("sglang", layers)
    if layers.kind == "linear" and code("sglang", layers) != "none":
        yield vllm.multiplied_length(layers)


def _in_its_own_code(layers: Layers) -> Iterator[Difference]:
    if (layers.model_type, layers.key) == ("deepseek_v4", "main") and layers.kind != "default":
        yield base_rope(f"never scales the {layers.key} layers of {layers.model_type}")
        return
    if is_known_for("sglang", "whole theta", layers) and not float(layers.parameters["rope_theta"]).is_integer():
        yield Difference("theta", "honoured", f"{int(layers.parameters['rope_theta'])}, its whole part")
    if _is_unscaled(layers) and layers.kind != "default":
        text = f"does not scale {layers.model_type}, silently leaving base RoPE; use another rope_theta (ntk, abf)"
        yield base_rope(text)
        return
    if vllm.takes_one_row(layers):
        yield vllm.one_row(layers)
        return
    if layers.kind in _BY_KIND:
        yield from _BY_KIND[layers.kind](layers)
    if layers.is_mla:
        yield from vllm.overwritten(layers)
    elif layers.is_partial and layers.kind != "proportional" and layers.model_type != "glm4":
        yield Difference("rotary dim", "honoured", "left to the model's own code, which was not read")


def _is_unscaled(layers: Layers) -> bool:
    """Whether the model's code gives its rotary layers a theta alone."""
    has_its_own = architecture(layers) == "Ernie4_5_VLMoeForConditionalGeneration"  # ernie45_moe_vl.py
    return has_its_own or is_known_for("sglang", "unscaled", layers)


def _longrope(layers: Layers) -> Iterator[Difference]:
    if vllm.rotates_wrong_pairs(layers):
        yield wrong_pairs(layers, "stops with a ValueError")
    yield from vllm.own_longrope_scale(layers)
    if layers.changes_with_length:
        text = "changes the list batch by batch, also under keys that are cached already"
        yield Difference("switch", "recomputed", "for the whole batch, once one of its positions is past", text)


def _yarn_scale(layers: Layers) -> float:
    """Returns the multiplier of cos and sin under yarn: SGLang reads ``attn_factor``, not ``attention_factor``."""
    parameters = layers.parameters
    weighed = parameters.get("mscale") is not None and parameters.get("mscale_all_dim") is not None
    usual = vllm.deepseek_scale(parameters) if layers.is_mla or weighed else temperature(parameters["factor"])
    return usual * parameters.get("attn_factor", 1.0)


def _yarn(layers: Layers) -> Iterator[Difference]:
    asked, computed = layers.attention_factor, _yarn_scale(layers)
    weights = {"mscale", "mscale_all_dim"} & layers.parameters.keys()
    if weights and "mrope_section" in layers.parameters:
        yield stops(f"stops at mscale and mscale_all_dim in {layers.model_type}; leave them out", how="run")
    if not math.isclose(asked, computed):
        yield recomputed_scale(asked, computed)


def _dynamic(layers: Layers) -> Iterator[Difference]:
    if "alpha" not in layers.parameters:
        yield one_table(round(layers.parameters["factor"] * layers.rope.original_length))


def _proportional(layers: Layers) -> Iterator[Difference]:
    if layers.parameters.get("factor", 1) != 1:
        yield ignores_factor("run")
    if layers.parameters.get("partial_rotary_factor", 1) != 1 and not layers.is_proportional_by_default:
        text = "leaves partial_rotary_factor to the model's own code, which for most models does not look for it there"
        yield Difference("partial_rotary_factor", "dropped", "1 in most models", text)


_BY_KIND = {"longrope": _longrope, "yarn": _yarn, "dynamic": _dynamic, "proportional": _proportional}

ENGINE = Engine(
    name="SGLang",
    version="0.5.23",
    differences=_differences,
    how=_how,
    serve=_serve,
    workaround=_workaround,
    spelled=_spelled,
    in_card=True,
)
