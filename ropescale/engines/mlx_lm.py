"""mlx-lm, which computes frequencies from the keys of transformers 4 when it loads a model.

A factory for rotary layers (models/rope_utils.py) supports every rope type. Most models call the factory, but some
support only a theta. The factory ignores the attention factor: for yarn it computes the factor from ``mscale``, and
for per-pair factors from the lengths. :func:`_own_keys` chooses these so that mlx-lm computes the requested factor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from ..configs.class_defaults import ALL_LAYERS
from ..schedules.by_parts import temperature
from ..schedules.longrope import usual_scale
from . import vllm
from .base import EVERY, Command, Difference, Engine, Layers, Serving, shell

_LOADED_AS: dict[str, str] = {
    pair.partition(":")[0]: pair.partition(":")[2]
    for pair in (
        "mistral:llama pixtral:llama iquestcoder:llama smollm3:llama llava:mistral3 gemma3:gemma3_text "
        "gemma4:gemma4_text gemma4_unified:gemma4_text gemma4_unified_text:gemma4_text kimi_k2:deepseek_v3 "
        "kimi_k25:deepseek_v3 kimi_vl:deepseek_v3 joyai_llm_flash:deepseek_v3 minimax_m2:minimax qwen2_vl:qwen2 "
        "qwen2_5_vl:qwen2 qwen3_vl:qwen3 qwen3_vl_moe:qwen3_moe qwen3_5_text:qwen3_5 qwen3_5_moe:qwen3_5 "
        "longcat_flash_ngram:longcat_flash solar_open:glm4_moe"
    ).split()
}
"""Model types that run with the code of another type, such as the type of their language model."""

_READS_V4 = frozenset(
    "afmoe apertus bailing_moe bailing_moe_linear bitnet deepseek_v3 deepseek_v32 dots1 exaone exaone4 exaone_moe "
    "falcon_h1 gemma3_text glm4_moe_lite gpt_oss granite granitemoe internlm2 internlm3 iquestloopcoder llama llama4 "
    "longcat_flash mimo minicpm nemotron-nas olmo2 olmo3 olmoe qwen2 qwen3 qwen3_next seed_oss step3p5 telechat3 "
    "youtu_llm".split()
)
"""Types whose code passes ``rope_scaling`` to the factory."""

_READS_V5 = frozenset("gemma4_text glm_moe_dsa laguna mellum ministral3 qwen3_5".split())
"""Types whose code passes ``rope_parameters`` to the factory."""

_READS_V5_THETA = frozenset(["exaone_moe", "lfm2", "lfm2_moe"])
"""Types whose code reads ``rope_theta`` from ``rope_parameters``."""

_LISTS_ALONE = frozenset(["phi3", "phimoe", "minicpm3"])
"""Types whose code supports only a theta and longrope."""

_NEVER_PLAIN = frozenset(["phimoe", "minicpm3", "deepseek_v2"])
"""Types whose code fails if the configuration has no scaling."""

_THETA_ALONE = frozenset(
    "Klear afm7 baichuan_m1 cohere cohere2 dbrx ernie4_5 ernie4_5_moe gemma gemma2 gemma3n gemma3n_text glm glm4 "
    "glm4_moe gpt_neox granitemoehybrid helium lfm2 lfm2_moe llama4_text mimo_v2_flash minimax mixtral openelm "
    "phi phi3small plamo plamo2 qwen qwen3_moe recurrent_gemma stablelm starcoder2".split()
)
"""Types whose code ignores all scaling, although some of them have a field for ``rope_scaling``."""

_STOPS = frozenset("deepseek hunyuan hunyuan_v1_dense internlm2 nemotron qwen2_moe".split())
"""Types whose code fails on scaling without the old key ``type``, which neither transformers nor ropescale writes."""

_WINDOWS_ARE_PLAIN = frozenset(["gemma3_text", "olmo3"])
"""Types whose sliding-window layers use a theta without scaling."""


_BY_PYTHON = "mlx_lm.server and mlx_lm.generate read only the folder, which lacks mlx-lm's own keys for this schedule"

_NEIGHBOURS = frozenset("deepseek_v3 deepseek_v32 glm4_moe_lite glm_moe_dsa llama4 longcat_flash youtu_llm".split())
"""Types that rotate pairs of neighbouring coordinates, which mlx-lm's layer for per-pair factors does not support."""


class MlxLmEngine(Engine):
    """mlx-lm."""

    name = "mlx-lm"
    version = "0.32.2"
    run: ClassVar = {
        **dict.fromkeys(("qwen3", "mistral", "gemma3_text", "olmo2"), EVERY - {"proportional"}),
        "llama": EVERY,
        "phi3": frozenset(["default", "longrope"]),
        "gpt_neox": frozenset(["default"]),
    }

    def differences(self, layers: Layers) -> Iterator[Difference]:
        """Yields the differences of mlx-lm for one kind of layer."""
        lost = list(_lost(layers))
        return iter(lost) if lost else _other_numbers(layers)

    def serve(self, serving: Serving) -> list[Command]:
        """Returns the ``mlx_lm.server`` command, or Python code if the configuration must differ from the folder's.

        The server has no option for the configuration or the revision.
        """
        changed = _changes(serving)
        if changed or serving.revision:
            words = [repr(serving.model)]
            words += [f"revision={serving.source.revision!r}"] if serving.revision else []
            words += ["model_config=changes"] if changed else []
            lines = ["from mlx_lm import generate, load", "", *([f"changes = {changed!r}"] if changed else [])]
            lines += [f"model, tokenizer = load({', '.join(words)})", "print(generate(model, tokenizer, 'Hello'))"]
            return [Command("python", "\n".join(lines), _BY_PYTHON if serving.is_written else "")]
        generate = shell("mlx_lm.generate", "--model", serving.model, "--prompt", "-", "--max-tokens", "256")
        return [
            Command("sh", shell("mlx_lm.server", "--model", serving.model)),
            Command("sh", generate, "or once, with the prompt from standard input"),
        ]

    def workaround(self, layers: Layers) -> str:
        """Returns advice for a schedule that cannot be served."""
        if _code(layers) in _THETA_ALONE | _STOPS | {"internlm3", "phi3"}:
            return "use another rope_theta (ntk, abf), or serve it with transformers"
        return "serve it with transformers"

    def spelled(self, serving: Serving) -> Serving:
        """Returns the checkpoint with rope parameters from which mlx-lm computes the requested attention factor."""
        return serving.spelled(_own_keys)


def _changes(serving: Serving) -> dict[str, object]:
    """Returns the keys to replace at the top level of the folder's configuration."""
    changed = {} if serving.is_written else serving.changes()
    for wanted, own in zip(serving.layers, serving.spelled(_own_keys).layers):
        added = {key: value for key, value in own.parameters.items() if wanted.parameters.get(key) != value}
        if added:
            name = "rope_parameters" if _code(own) in _READS_V5 else "rope_scaling"
            before: Any = changed.get(name, serving.stored.section.get(name))
            stated = dict(before) if isinstance(before, Mapping) else {}
            inner = stated.get(own.key)  # the parameters of one layer type
            changed[name] = {**stated, **({own.key: {**inner, **added}} if isinstance(inner, Mapping) else added)}
    if changed and serving.stored.is_multimodal:
        return {"text_config": {**serving.stored.section, **changed}}
    return changed


def _own_keys(layers: Layers) -> Mapping[str, object]:
    """Returns the rope parameters from which mlx-lm computes the requested attention factor."""
    asked, stated = layers.attention_factor, layers.parameters
    if layers.kind == "longrope" and asked >= 1 and not _has_scale(layers) and _takes_original(layers):
        # mlx-lm computes sqrt(1 + ln(max / original) / ln original), and uses the long list at every length
        return {**stated, "original_max_position_embeddings": float(layers.configuration.max_length ** (asked**-2))}
    slope = temperature(stated["factor"]) - 1 if layers.kind == "yarn" else 0.0
    if slope and not math.isclose(asked, vllm.deepseek_scale(stated)):
        under = stated.get("mscale_all_dim") or 0.0
        return {**stated, "mscale": (asked * (1 + under * slope) - 1) / slope, "mscale_all_dim": under}
    return stated


def _takes_original(layers: Layers) -> bool:
    """Whether mlx-lm reads the original length from the rope parameters; for phi3, it reads the top level instead."""
    return _code(layers) not in ("phi3", "phimoe")


def longrope_scale(layers: Layers) -> float:
    """Returns the multiplier of queries and keys that mlx-lm computes under longrope, from the lengths as in the paper.

    Only the code of phimoe passes ``short_mscale`` and ``long_mscale`` to the rotary layer.
    """
    stated = layers.parameters.get("long_mscale")
    if _code(layers) == "phimoe" and stated:
        return stated
    original = layers.parameters.get("original_max_position_embeddings", layers.rope.original_length)
    return usual_scale(layers.configuration.max_length / original, original)


def _has_scale(layers: Layers) -> bool:
    """Whether mlx-lm computes the requested attention factor under longrope."""
    return math.isclose(layers.attention_factor, longrope_scale(layers), rel_tol=1e-5)


def _code(layers: Layers) -> str:
    """Returns the type whose code in mlx-lm runs the model."""
    of = _LOADED_AS.get(layers.whole_type, layers.whole_type)
    if of == "mistral3":
        return "ministral3" if layers.model_type == "ministral3" else "llama"
    return of


def _lost(layers: Layers) -> Iterator[Difference]:
    """Yields the difference in the frequencies or theta, if there is one."""
    code = _code(layers)
    if code not in _READS_V4 | _READS_V5 | _LISTS_ALONE | _THETA_ALONE | _STOPS | {"deepseek_v2"}:
        yield Difference.stops(computes="stops: no code for this model")
    elif layers.kind == "default" and code not in _NEVER_PLAIN:
        stated = {"rope_theta", "rotary_emb_base"} & layers.section.keys()
        if layers.section.get("rope_parameters") and not stated and code not in _READS_V5 | _READS_V5_THETA:
            text = f"does not read rope_parameters for {code}, and uses its own theta; add rope_theta beside them"
            yield Difference("theta", "dropped", "the default of its code", text)
    elif code in _THETA_ALONE or (code in _WINDOWS_ARE_PLAIN and layers.key == "sliding_attention"):
        where = code if layers.key == ALL_LAYERS else f"the {layers.key} layers of {code}"
        text = f"reads no scaling for {where}, silently leaving base RoPE; use another rope_theta (ntk, abf)"
        yield Difference.base_rope(text)
    elif _stops(layers, code):
        text = f"stop{{s}} with an error at {layers.kind} for {code}; {ENGINE.workaround(layers)}"
        yield Difference.stops(text)
    elif code not in _READS_V5 and "rope_scaling" not in layers.section:
        text = (
            f"does not read rope_parameters for {code}, silently leaving base RoPE; patched folders have both spellings"
        )
        yield Difference.base_rope(text)
    elif code in _NEIGHBOURS and layers.kind == "longrope":
        yield Difference.wrong_pairs(layers, "rotates the wrong pairs")
    elif code == "mellum" and layers.kind == "linear":
        yield Difference.base_rope(f"ignores linear scaling for {code}, silently leaving base RoPE; use yarn")
    elif code == "deepseek_v2" and layers.kind != "yarn":
        yield Difference.stops(f"computes yarn for {code} under every rope type; use yarn", "yarn")


def _stops(layers: Layers, code: str) -> bool:
    """Whether mlx-lm fails to load the model."""
    written = layers.section.get("rope_scaling")
    if code in _STOPS:
        understood = layers.kind in ("linear", "dynamic") and isinstance(written, Mapping) and "type" in written
        return not (understood and code != "qwen2_moe")
    if code in _LISTS_ALONE:
        return layers.kind != "longrope"
    if code == "deepseek_v2":
        return layers.kind == "default"
    if code == "internlm3":
        return layers.kind not in ("linear", "dynamic")
    return code == "gpt_oss" and layers.kind in ("longrope", "dynamic")  # its code does not pass on the maximum length


def _other_numbers(layers: Layers) -> Iterator[Difference]:
    """Yields the differences other than those in the frequencies."""
    kind, asked, supplied = layers.kind, layers.attention_factor, "; `ropescale export --for mlx-lm` supplies it"
    if kind == "longrope":
        computed = longrope_scale(layers)
        if not _has_scale(layers) and asked < 1:
            text = f"cannot multiply by less than 1 with per-pair factors ({asked:.4g} requested); serve it with"
            yield Difference("attention factor", "unsupported", f"{computed:.6g}", f"{text} transformers")
        elif not _has_scale(layers):
            own = Difference.recomputed_scale(asked, computed, " of per-pair factors", of_lengths=True)
            yield replace(own, warning=own.warning + supplied) if _takes_original(layers) else own
        if layers.changes_with_length:
            yield Difference("switch", "dropped", "the long list, always", "always use{s} the long list")
    if kind == "yarn":
        computed = vllm.deepseek_scale(layers.parameters)
        if not math.isclose(asked, computed):
            own = Difference.recomputed_scale(asked, computed)
            yield replace(own, warning=own.warning + supplied) if layers.parameters["factor"] > 1 else own
        if _code(layers) == "youtu_llm" and layers.parameters.get("mscale_all_dim"):
            text = "drops the softmax scale of mscale_all_dim for youtu_llm"
            yield Difference("softmax scale", "dropped", "1", text)
        if not layers.is_truncated:
            yield Difference.always_truncates()
    if kind == "dynamic":
        yield Difference("switch", "honoured", "at every call; cached keys keep old angles")


ENGINE = MlxLmEngine()
