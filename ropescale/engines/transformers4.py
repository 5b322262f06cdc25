"""transformers 4 and how its versions read the v4 keys (``rope_theta``, ``rope_scaling``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from ..configs import class_defaults
from ..configs.class_defaults import ALL_LAYERS
from ..configs.configuration import Configuration, Scaling, write_rope
from .base import V4_NAMES, Command, Difference, Engine, How, Layers, Serving, base_rope, is_untouched, stops

CAME_WITH = {
    "4.50": (
        "aria_text bamba cohere cohere2 dbrx diffllama emu3_text_model falcon gemma gemma2 gemma3_text glm gpt_neox "
        "gpt_neox_japanese granite granitemoe granitemoeshared helium jetmoe llama mistral mixtral mllama_text_model "
        "moshi nemotron olmo olmo2 olmoe persimmon phi phi3 phimoe qwen2 qwen2_moe recurrent_gemma stablelm starcoder2 "
        "zamba2"
    ).split(),
    "4.51": "deepseek_v3 glm4 llama4_text phi4_multimodal qwen3 qwen3_moe".split(),
    "4.52": "bitnet granitemoehybrid internvl janus qwen2_5_omni_thinker".split(),
    "4.53": "arcee dots1 falcon_h1 gemma3n_text glm4v minimax smollm3".split(),
    "4.54": (
        "deepseek_v2 deepseek_vl deepseek_vl_hybrid doge ernie4_5 ernie4_5_moe evolla exaone4 glm4_moe lfm2 "
        "modernbert-decoder perception_lm"
    ).split(),
    "4.55": "cohere2_vision gpt_oss".split(),
    "4.56": "apertus florence2 glm4v_moe hunyuan_v1_dense hunyuan_v1_moe kosmos-2.5 ovis2 seed_oss".split(),
    "4.57": (
        "blt flex_olmo lfm2_vl longcat_flash ministral olmo3 qwen3_next qwen3_omni_moe_thinker qwen3_vl qwen3_vl_moe "
        "vaultgemma"
    ).split(),
    "5": (
        "cohere_compass cosmos3_edge cosmos3_omni deepseek_ocr2 diffusion_gemma ernie4_5_vl_moe exaone4_5 fast_vlm "
        "glm46v glm5_next glm_ocr glmga granite4_vision granite_docling hunyuan_vl hyperclovax_vision_v2 inkling2 "
        "inkling_mm_model kimi_k25 lfm3_vl lighton_ocr minicpm_ocr minicpmv4_6 minicpmv4_7 minimax_m3_vl mistral4 "
        "mistral_large4 molmo2 muse_glimmer muse_spark nemotron_h_omni paddleocr_vl pi0 pp_chart2table pp_formulanet "
        "qianfan_ocr step3p7 t5gemma2 unlimited_ocr video_llama_3"
    ).split(),
}
"""The versions that first knew the types that ropescale knows (4.50: or an earlier one); the others came with 5.

Models that see are those that came with 4.51 or later, and ``5`` lists no others.
"""

_IGNORES = ("dbrx", "nemotron")
"""Types that read a theta (DBRX in ``attn_config``) and no ``rope_scaling``."""

_ONE_THETA = ("modernbert-decoder", "olmo3")
"""Types with one theta for layers that have two in transformers 5."""

_WANTS_ALPHA = ("hunyuan_v1_dense", "hunyuan_v1_moe")
_IGNORES_BEFORE_4_48 = ("gemma", "gemma2", "jetmoe", "mistral", "mixtral")
_STOPS_BEFORE_4_54 = ("zamba2",)
_HAS_BOTH_LISTS = ("phi3",)
"""Types that chose between two lists earlier than the others."""

_LOSES_SOFTMAX_SCALE = ("deepseek_v2",)

RUN = frozenset(
    "apertus arcee bitnet cohere cohere2 dbrx deepseek_v2 deepseek_v3 diffllama dots1 ernie4_5 exaone4 falcon gemma "
    "gemma2 gemma3_text glm glm4 gpt_neox gpt_neox_japanese gpt_oss granite granitemoe granitemoehybrid helium "
    "hunyuan_v1_dense hunyuan_v1_moe jetmoe llama longcat_flash minimax mistral mixtral modernbert-decoder nemotron "
    "olmo olmo2 olmo3 olmoe persimmon phi phi3 phimoe qwen2 qwen2_moe qwen3 qwen3_moe recurrent_gemma seed_oss smollm3 "
    "stablelm starcoder2 vaultgemma zamba2".split()
)
"""Types whose rotary modules tests build in those versions; of the others the shared code was read."""


def _how(layers: Layers, field: str) -> How:
    """Returns ``run`` where rotary modules are built and compared; there is no maximum length to run into."""
    return "source" if field == "max length" or layers.model_type not in RUN else "run"


def _serve(serving: Serving) -> list[Command]:
    """Returns ``from_pretrained``, with v4's keys if the folder lacks them."""
    changed = {key: value for key, value in _spelled(serving).changes().items() if key != "rope_parameters"}
    if serving.is_written:
        stored = serving.stored.section
        only_v5 = "rope_parameters" in stored and not V4_NAMES & stored.keys()
        changed = {key: value for key, value in changed.items() if key in V4_NAMES and only_v5}
    return [Command("python", serving.snippet(changed))]


def came_with(layers: Layers) -> tuple[str, str | None]:
    """Returns the type of model that came last, and the version that first knew it; ``5`` for all of transformers 5.

    That is the whole model's, or the language model's where nothing is known of the whole; None for an unknown one.
    """
    for name in (layers.whole_type, layers.model_type):
        for version, types in CAME_WITH.items():
            if name in types:
                return name, version
    return layers.model_type, "5" if layers.model_type in class_defaults.load() else None


def _is_later(layers: Layers, version: str) -> bool:
    """Whether a version of transformers 4, such as 4.55, is the first that knew this type of model, or older."""
    came = came_with(layers)[1]
    if came in (None, "4.50"):  # that one, or any before it
        return False
    return tuple(map(int, came.split("."))) >= tuple(map(int, version.split(".")))


def _differences(layers: Layers) -> Iterator[Difference]:
    """Yields the differences of transformers 4 for this kind of layer."""
    name, came = came_with(layers)
    if came == "5":
        yield stops(f"lacks {name}, which came with transformers 5", _NO_TYPE, "run")
        return
    today = next(_today(layers), None)
    if today is not None:
        yield today
        return
    if _is_later(layers, "4.52"):
        text = f"lack{{s}} {name}; use {came} or later"
        who = f"transformers before {came}"
        yield Difference("frequencies", "unsupported", _NO_TYPE, text, who, "run", "4.51.3")
    if layers.kind != "default":
        yield from _of_older(layers)


_NO_TYPE = "stops: no such model type"


def _of_older(layers: Layers) -> Iterator[Difference]:
    """Yields the differences of earlier versions that knew the model type."""
    for found in _in_older(layers):
        until = found.warning.partition("; use ")[2].partition(" ")[0]
        if _is_later(layers, "4.52") and found.version in ("4.45.2", "4.51.3"):  # which did not have this type
            found = replace(found, version=f"before {until}", how="source")
        if until.startswith("5") or not _is_later(layers, until):
            yield found


def _in_older(layers: Layers) -> Iterator[Difference]:
    yield from _in_some_types(layers)
    yield from _in_yarn(layers)
    if layers.kind == "longrope" and layers.changes_with_length and layers.model_type not in _HAS_BOTH_LISTS:
        text = "always use{s} the long list; use 4.51 or later"
        yield _older("4.45.2", "switch", "the long list, always", text, "transformers before 4.51")


def _older(version: str, field: str, computes: str, warning: str, who: str) -> Difference:
    """Returns a difference of other versions only, which gets a separate row."""
    return Difference(field, "recomputed", computes, warning, who, "run", version)


def _today(layers: Layers) -> Iterator[Difference]:
    """Yields the reasons why no version 4 computes these frequencies, the most important first."""
    kind, model_type = layers.kind, layers.model_type
    instead = "; load it with transformers 5"
    if not _has_keys(layers):
        where = "" if layers.key == ALL_LAYERS else f" ({layers.key})"
        yield stops(f"has no keys for a scaled {model_type}{where}{instead}", "base RoPE", "run")
    if model_type in _ONE_THETA and len(_thetas(layers)) > 1:
        text = f"has one theta for all layers of {model_type}, so the others change as well{instead}"
        yield Difference("theta", "recomputed", "one theta for all layers", text, how="run")
    accepted = layers.configuration.family.v4_keys
    if "linear" in accepted and kind not in ("default", *accepted):
        what = "per-pair factors" if kind == "longrope" else f"{kind} scaling"
        yield stops(f"refuses {what} for {model_type}{instead}", how="run")
    if model_type in _IGNORES and kind != "default":
        yield base_rope(f"ignores rope_scaling for {model_type}{instead}", "run")
    if model_type in _WANTS_ALPHA and kind == "dynamic":
        text = f"knows dynamic scaling of {model_type} only with a fixed alpha, and stops with a KeyError{instead}"
        yield stops(text, "stops with a KeyError", "run")
    if kind == "proportional":
        text = f"does not know proportional RoPE and stops with a KeyError{instead}"
        yield stops(text, "stops with a KeyError", "run")


def _has_keys(layers: Layers) -> bool:
    """Whether version 4 finds the parameters of this kind of layer."""
    if layers.kind == "default":
        return _theta_is_beside(layers)
    return "rope_scaling" in layers.section and layers.key in (ALL_LAYERS, "full_attention")


def _theta_is_beside(layers: Layers) -> bool:
    """Whether a key of version 4 that reaches these layers holds the theta, the only change."""
    keys = layers.configuration.text.v4
    names = [name for name in class_defaults.THETA_NAMES if layers.key in keys.get(name, ())]
    names += ["rope_theta"] if layers.model_type in _ONE_THETA else []
    place = layers.section.get("attn_config") if layers.model_type == "dbrx" else layers.section
    return isinstance(place, Mapping) and any(place.get(name) == layers.parameters["rope_theta"] for name in names)


def _thetas(layers: Layers) -> set[object]:
    return {found["rope_theta"] for found in layers.configuration.text.new.values() if isinstance(found, Mapping)}


def _in_some_types(layers: Layers) -> Iterator[Difference]:
    model_type = layers.model_type
    if model_type in _IGNORES_BEFORE_4_48:
        text = f"ignore{{s}} rope_scaling for {model_type}; use 4.48 or later"
        yield _older("4.45.2", "frequencies", "base RoPE", text, "transformers before 4.48")
    if model_type in _STOPS_BEFORE_4_54:
        text = f"stop{{s}} with an error at a scaled {model_type}; use 4.54 or later"
        found = _older("4.51.3", "frequencies", "stops with an error", text, "transformers before 4.54")
        yield replace(found, status="unsupported")
    if model_type in _LOSES_SOFTMAX_SCALE and layers.parameters.get("mscale_all_dim"):
        text = f"leave{{s}} out the softmax scale that mscale_all_dim asks for in {model_type}; use 5.15 or later"
        yield _older("4.57.1", "softmax scale", "none", text, "transformers before 5.15")


def _in_yarn(layers: Layers) -> Iterator[Difference]:
    if layers.kind != "yarn":
        return
    text = "put{s} max_position_embeddings into the ramp; use 4.51 or later"
    yield _older("4.45.2", "original length", "max_position_embeddings", text, "transformers before 4.51")
    if not layers.is_truncated:
        text = "always round{s} the ramp to whole pairs (truncate = true); use 4.55 or later"
        yield _older("4.51.3", "truncate", "true", text, "transformers before 4.55")
    factor, ratio = layers.parameters["factor"], layers.length / layers.rope.original_length
    if factor != ratio:
        text = (
            f"take{{s}} max_position_embeddings / original_max_position_embeddings = {ratio:.6g} for the factor "
            f"{factor:.6g}; use 4.56 or later"
        )
        yield _older("4.51.3", "factor", f"{ratio:.10g}", text, "transformers 4.51 to 4.55")


def _spelled(serving: Serving) -> Serving:
    """Returns the configuration in v4's keys, even if only transformers 5 wrote it."""
    if not serving.is_written:
        return serving
    original = max(layers.rope.original_length for layers in serving.layers)
    written = Configuration.read(write_rope(serving.stored, Scaling({}, serving.wanted.max_length, original)))
    layers = tuple(replace(each, configuration=written) for each in serving.layers)
    return replace(serving, wanted=written, layers=layers)


def _remaining(serving: Serving, layers: Layers) -> Iterator[Difference]:
    """Yields the differences that remain with the code of :func:`_serve`."""
    yield from () if is_untouched(serving, layers) else _differences(layers)


ENGINE = Engine(
    name="transformers 4",
    version="4.51.3, 4.57.1",
    differences=_differences,
    how=_how,
    serve=_serve,
    workaround=lambda layers: "load it with transformers 5",
    spelled=_spelled,
    remaining=_remaining,
)
