"""vLLM, which computes a table once, when the engine starts."""

import math
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Literal

from ..configs.class_defaults import ALL_LAYERS
from ..files import Json
from ..schedules.by_parts import temperature
from ..schedules.longrope import usual_scale
from .base import EVERY, Command, Difference, Engine, Layers, Serving, option, shell
from .model_code import architecture, as_read, code, not_its_own

TURN_HALVES_AFTER_ALL = {"llama4", "llama4_text"}
"""Types with interleaved pairs whose weights vLLM permutes at loading, so that it rotates halves (models/llama4.py)."""

_KINDS = EVERY - {"proportional"}
_SERVED = {
    **dict.fromkeys("llama qwen3 mistral gemma3_text olmo olmo2 gpt_neox".split(), _KINDS),
    "phi3": {"default", "longrope"},
}
_RUN = {
    **dict.fromkeys(
        (
            "cohere2_moe ernie4_5_moe gemma2 gemma3_text glm4 granite llama mistral mixtral phi3 qwen2 qwen2_vl_text "
            "qwen3 qwen3_vl_text"
        ).split(),
        EVERY,
    )
}
"""Types whose rope parameters tests pass to the rotary layer."""

_PLAIN = {("deepseek_v4", "main"), ("dots3_note", "sliding_attention"), ("dots3_note_text", "sliding_attention")}
"""Layers for which vLLM ignores the scaling in the configuration (models/deepseek_v4, models/dots3_note)."""

_UNSCALED = (
    "Ernie4_5_VLMoeForConditionalGeneration MiMoV2FlashForCausalLM MiMoV2ForCausalLM MiMoV2OmniForCausalLM "
    "MiniMaxM3SparseForCausalLM MiniMaxM3SparseForConditionalGeneration"
).split()
"""Classes for which vLLM ignores the scaling in all layers (ernie45_vl_moe.py, mimo_v2.py, models/minimax_m3)."""

_RAMP_OF_TRAINED = "qwen3_vl_text qwen3_vl_moe_text qwen3_5_text qwen3_5_moe_text".split()
"""Types with mrope whose code computes yarn's ramp from the trained length, not from four times it (qwen3_vl.py)."""

MLA_BUT_PLAIN = ("minicpm3",)
"""Types with latent attention for which vLLM passes the rope parameters unchanged to the rotary layer."""

_HALVED = "vLLM computes a float32 checkpoint in half precision; --dtype float32 keeps it as measured"


class VLLMEngine(Engine):
    """vLLM.

    Attributes:
        key: the engine's name in ``model_code.json``.
        multiplied: the rope types for which the table is ``factor`` times as long as ``max_position_embeddings``.
    """

    name = "vLLM"
    version = "0.33.0"
    served_version = "0.32.0"
    served = _SERVED
    run = _RUN
    in_card = True
    head = """--speculative-config '{{"method": "{}", "model": "HEAD", "num_speculative_tokens": 3}}\'"""
    mtp = """--speculative-config '{{"method": "mtp", "num_speculative_tokens": {}}}\'"""
    # a dict of overrides stays with the target (config/speculative.py of 0.32.0 and 0.33.0)
    beside = (
        "; --hf-overrides does not reach the draft: past the length in its config.json, nothing is accepted; patch it"
    )
    key: Literal["vllm", "sglang"] = "vllm"
    multiplied: tuple[str, ...] = ("linear",)

    def differences(self, layers: Layers) -> Iterator[Difference]:
        """Yields the differences of the engine for one kind of layer."""
        whose = code(self.key, layers)
        own = as_read(self.key, layers, self.in_its_own_code(layers))
        computed = own if whose == "own" else not_its_own(self.key, layers)
        return chain(computed, self.lengths(layers) if whose != "none" else ())

    def in_its_own_code(self, layers: Layers) -> Iterator[Difference]:
        """Yields the differences of the engine's own model code."""
        kind = layers.kind
        name = layers.model_type
        stated = layers.parameters
        length = layers.rope.original_length
        if kind != "default" and ((name, layers.key) in _PLAIN or architecture(layers) in _UNSCALED):
            where = "layers" if layers.key == ALL_LAYERS else f"{layers.key} layers"
            yield Difference.base_rope(f"never scales the {where} of {name}")
            return
        if name == "ministral3" and "llama_4_scaling" not in layers.section:  # models/mistral.py
            text = "does not scale queries: config.json lacks llama_4_scaling (beta, original_max_position_embeddings)"
            yield Difference("query scale", "dropped", 1, text)
        if takes_one_row(layers):
            yield Difference.one_row(layers)
            return
        if kind == "longrope":
            yield from own_longrope(layers, "stops, or rotates the wrong pairs")
            if layers.changes_with_length:
                yield Difference.one_list()
        if kind == "yarn":
            asked = layers.attention_factor
            usual = temperature(layers.factor)
            overwrites = layers.is_mla and name not in MLA_BUT_PLAIN
            if name == "deepseek_v4":  # it sets mscale and mscale_all_dim to 0 (models/deepseek_v4/common/rope.py)
                if not math.isclose(asked, 1.0):
                    yield Difference.recomputed_scale(asked, 1.0, " of DeepSeek-V4")
            elif overwrites and stated.get("attention_factor") == 1:
                text = "replaces an attention factor of 1 on MLA models by deepseek_llama_scaling, not yarn's scale"
                yield Difference("attention factor", "recomputed", "deepseek_llama_scaling", text)
            elif overwrites and not math.isclose(asked, deepseek_scale(stated)):
                yield Difference.recomputed_scale(asked, deepseek_scale(stated), " on MLA models")
            elif name == "gpt_oss" and not math.isclose(asked, usual):
                yield Difference.recomputed_scale(asked, usual, " of gpt-oss")
            if "mrope_section" in stated and name not in _RAMP_OF_TRAINED:
                text = f"computes the ramp of {name} from {4 * length} trained tokens instead of {length}"
                yield Difference("original length", "recomputed", 4 * length, text)
        if kind == "dynamic" and "alpha" not in stated:
            text = (
                f"computes one static table, base RoPE of {length:,} positions, if max_trained_positions is missing, "
                "and reads past the table for longer texts (NaN)"
            )
            one = Difference.one_table(layers.length)
            yield one if "max_trained_positions" in stated else Difference.base_rope(text)
        if kind == "proportional" and not stated.get("partial_rotary_factor", 1.0):
            text = "refuses proportional RoPE with partial_rotary_factor 0"
            yield Difference.stops(text, "stops with a ValueError")
        if kind == "proportional" and layers.factor != 1:
            yield Difference.ignores_factor()
        if layers.is_mla and name not in MLA_BUT_PLAIN:
            yield from overwritten(layers)
        elif layers.is_mla and stated.get("mscale_all_dim"):
            text = f"drops the softmax scale of mscale_all_dim for {name}"
            yield Difference("softmax scale", "dropped", 1, text)
        if name == "gpt_oss" and kind != "yarn":
            yield Difference.other_table("is hard-wired to yarn for gpt-oss and will not use this table", "yarn")

    def lengths(self, layers: Layers) -> Iterator[Difference]:
        """Yields the differences in the maximum length, which the engine computes before it loads the model's code."""
        yield from of_the_factor(self.key, layers)
        refused = layers.is_mla or (code("vllm", layers) == "own" and rotates_wrong_pairs(layers))
        if layers.kind == "longrope" and layers.length > layers.rope.original_length and not refused:
            text = f"serve{{s}} the original length by default; pass --max-model-len {layers.length}"
            yield Difference("max length", "honoured", f"{layers.length}, by --max-model-len", text)
        if layers.kind == "linear" and "gemma3" not in layers.model_type:
            yield multiplied_length(layers)

    def serve(self, serving: Serving) -> list[Command]:
        """Returns the ``vllm serve`` command, with the changes that the folder's configuration lacks."""
        told = self.spelled(serving).overrides(self.positions(serving))
        words = ["vllm", "serve", serving.model, "--max-model-len", str(serving.length), *serving.revision]
        sections = (serving.stored.section, serving.stored.raw)
        stated = (section.get(name) for section in sections for name in ("dtype", "torch_dtype"))
        # vLLM loads float32 checkpoints in half precision by default (config/model.py)
        is_float32 = str(next(filter(None, stated), "")).removeprefix("torch.") == "float32"
        words += [*serving.trusting, *option("--hf-overrides", told)]
        return [shell(*words, note=_HALVED if is_float32 else "")]

    def positions(self, serving: Serving) -> int:
        """Returns the ``max_position_embeddings`` that the engine needs.

        A model that runs with transformers' code needs no change, because that code computes no table in advance.
        """
        own = code(self.key, serving.layers[0]) == "own"
        return serving.needed_positions(self.multiplied) if own else serving.wanted.max_length

    def spelled(self, serving: Serving) -> Serving:
        """Returns the checkpoint with the schedule in the engine's own keys, if the engine runs its own code."""
        if code(self.key, serving.layers[0]) != "own":
            return serving
        positions = serving.needed_positions(self.multiplied)
        return serving.spelled(lambda layers: self.own_keys(layers, positions))

    def own_keys(self, layers: Layers, positions: int) -> Json:
        """Returns the rope parameters from which the engine computes the requested numbers."""
        parameters = layers.parameters
        if layers.kind == "dynamic" and not {"alpha", "max_trained_positions"} & parameters.keys():
            return {**parameters, "max_trained_positions": layers.rope.original_length}
        if layers.kind == "linear":
            return {**parameters, "factor": float(layers.factor)}  # the rotary layer stops at a whole number
        scale = layers.attention_factor
        if layers.kind != "longrope" or math.isclose(longrope_scale(layers, positions), scale):
            return parameters
        mscales = dict.fromkeys(("short_mscale", "long_mscale"), scale)
        return {**parameters, "original_max_position_embeddings": layers.rope.original_length, **mscales}


# ---------------------------------------------------------------------------------------------------------
# Shared with SGLang and mlx-lm


def longrope_scale(layers: Layers, positions: int) -> float:
    """Returns the multiplier of cos and sin that vLLM and SGLang compute under longrope for the list that they select.

    Args:
        positions: the ``max_position_embeddings`` that the engine is given.
    """
    stated = layers.parameters.get("long_mscale" if layers.length > layers.rope.original_length else "short_mscale")
    original = layers.rope.original_length
    return usual_scale(positions / original, original) if stated is None else stated


def deepseek_scale(parameters: Mapping[str, float]) -> float:
    """Returns the multiplier of cos and sin in the engines' own ``deepseek_yarn``, which reads no attention factor."""
    given = {key: parameters[key] for key in ("mscale", "mscale_all_dim") if parameters.get(key) is not None}
    weights = {"mscale": 1.0, "mscale_all_dim": 0.0} | given
    factor = parameters.get("factor", 1.0)
    return temperature(factor, weights["mscale"]) / temperature(factor, weights["mscale_all_dim"])


def multiplied_length(layers: Layers) -> Difference:
    """Returns the difference of vLLM and SGLang, which multiply the maximum length by the factor of linear scaling."""
    text = "raise{s} max_position_embeddings by the factor automatically; do not raise it by hand"
    return Difference("max length", "honoured", f"{layers.length}, max_position_embeddings times the factor", text)


def of_the_factor(key: str, layers: Layers) -> Iterator[Difference]:
    """Yields the difference of vLLM and SGLang past the window that yarn's factor makes.

    Such a window is refused by vLLM (config/model.py); SGLang fills it by another formula (rotary_embedding/base.py).
    """
    most = round(layers.factor * layers.rope.original_length)
    if layers.kind == "yarn" and layers.length > most and code(key, layers) == "own":
        text = f"end{{s}} yarn's table at {most:,} tokens, the factor times the original length"
        yield Difference.other_table(text, f"a table of {most:,} tokens")


def rotates_wrong_pairs(layers: Layers) -> bool:
    """Whether a model with interleaved pairs runs in a rotary layer for halves, which fails or rotates the wrong pairs.

    Excludes types with latent attention, which :func:`overwritten` covers.
    """
    interleaved = layers.configuration.family.interleaved and not layers.is_mla
    return interleaved and layers.model_type not in TURN_HALVES_AFTER_ALL


def takes_one_row(layers: Layers) -> bool:
    """Whether a model with mrope passes three rows of positions to a rotary layer that takes one."""
    return "mrope_section" in layers.parameters and layers.kind not in ("default", "yarn")


def overwritten(layers: Layers) -> Iterator[Difference]:
    """Yields the differences in DeepSeek's attention, where the engines replace any scaling by ``deepseek_yarn``."""
    if layers.kind not in ("default", "yarn"):
        text = f"overwrite{{s}} {layers.kind} with deepseek_yarn on MLA models"
        yield Difference.other_table(text, "deepseek_yarn")
    elif not layers.is_truncated:
        yield Difference.always_truncates(" on MLA models")


def own_longrope(layers: Layers, wrong: str) -> Iterator[Difference]:
    """Yields the differences of vLLM and SGLang under longrope: wrong pairs, and the attention factor.

    Args:
        wrong: what a model with wrong pairs does.
    """
    if rotates_wrong_pairs(layers):
        yield Difference.wrong_pairs(layers, wrong)
    asked = layers.attention_factor
    computed = longrope_scale(layers, layers.length)
    if not layers.is_mla and not math.isclose(asked, computed):
        yield Difference.recomputed_scale(asked, computed, of_lengths=True)


ENGINE = VLLMEngine()
