"""transformers 4 and how its versions read the v4 keys (``rope_theta``, ``rope_scaling``)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from ..configs import class_defaults
from ..configs.class_defaults import ALL_LAYERS
from ..configs.configuration import Configuration, Scaling, write_rope
from .base import V4_NAMES, Command, Difference, Engine, How, Layers, Serving, Status

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
"""The first version with each type that ropescale supports (4.50: or an earlier one); the others came with 5.

Vision-language models are listed from 4.51 on, and ``5`` lists only those.
"""

_IGNORES = ("dbrx", "nemotron")
"""Types that read a theta (DBRX in ``attn_config``) and no ``rope_scaling``."""

_ONE_THETA = ("modernbert-decoder", "olmo3")
"""Types with one theta for layers that have two in transformers 5."""

_WANTS_ALPHA = ("hunyuan_v1_dense", "hunyuan_v1_moe")
_IGNORED = ("gemma", "gemma2", "jetmoe", "mistral", "mixtral")
"""Types that read no ``rope_scaling`` before 4.48."""

_STOPPED = ("zamba2",)
"""Types that failed on scaling before 4.54."""

_HAS_BOTH_LISTS = ("phi3",)
"""Types that supported two lists in earlier versions than the others."""

_LOSES_SOFTMAX_SCALE = ("deepseek_v2",)

RUN = frozenset(
    "apertus arcee bitnet cohere cohere2 dbrx deepseek_v2 deepseek_v3 diffllama dots1 ernie4_5 exaone4 falcon gemma "
    "gemma2 gemma3_text glm glm4 gpt_neox gpt_neox_japanese gpt_oss granite granitemoe granitemoehybrid helium "
    "hunyuan_v1_dense hunyuan_v1_moe jetmoe llama longcat_flash minimax mistral mixtral modernbert-decoder nemotron "
    "olmo olmo2 olmo3 olmoe persimmon phi phi3 phimoe qwen2 qwen2_moe qwen3 qwen3_moe recurrent_gemma seed_oss smollm3 "
    "stablelm starcoder2 vaultgemma zamba2".split()
)
"""Types whose rotary modules tests build in those versions; for the others the shared code was read."""


_NO_TYPE, _ERROR = "stops: no such model type", "stops with an error"


class Transformers4Engine(Engine):
    """transformers 4, from 4.45 on."""

    name = "transformers 4"
    version = "4.51.3, 4.57.1"

    def differences(self, layers: Layers) -> Iterator[Difference]:
        """Yields the differences of transformers 4 for this kind of layer."""
        name, came = came_with(layers)
        if came == "5":
            yield Difference.stops(f"lacks {name}, which came with transformers 5", _NO_TYPE, "run")
            return
        reason = next(_in_every_version(layers), None)
        if reason is not None:
            yield reason
            return
        if _is_later(layers, "4.52"):
            who, text = f"transformers before {came}", f"lack{{s}} {name}; use {came} or later"
            yield Difference("frequencies", "unsupported", _NO_TYPE, text, who, "run", "4.51.3")
        if layers.kind != "default":
            yield from _in_older_versions(layers)

    def how(self, layers: Layers, field: str) -> How:
        """Returns ``run`` for types whose rotary modules tests compare, else ``source``; no maximum length applies."""
        return "source" if field == "max length" or layers.model_type not in RUN else "run"

    def serve(self, serving: Serving) -> list[Command]:
        """Returns ``from_pretrained``, with v4's keys if the folder lacks them."""
        changed = {key: value for key, value in self.spelled(serving).changes().items() if key != "rope_parameters"}
        if serving.is_written:
            stored = serving.stored.section
            only_v5 = "rope_parameters" in stored and not V4_NAMES & stored.keys()
            changed = {key: value for key, value in changed.items() if key in V4_NAMES and only_v5}
        return [Command("python", serving.snippet(changed))]

    def workaround(self, layers: Layers) -> str:
        """Returns advice for a schedule that transformers 4 cannot compute."""
        return "load it with transformers 5"

    def spelled(self, serving: Serving) -> Serving:
        """Returns the configuration in v4 keys, also for a folder that only transformers 5 wrote."""
        if not serving.is_written:
            return serving
        original = max(layers.rope.original_length for layers in serving.layers)
        written = Configuration.read(write_rope(serving.stored, Scaling({}, serving.wanted.max_length, original)))
        layers = tuple(replace(layers, configuration=written) for layers in serving.layers)
        return replace(serving, wanted=written, layers=layers)

    def remaining(self, serving: Serving, layers: Layers) -> Iterable[Difference]:
        """Yields the differences that remain with its commands; none for layers that the vendor never scaled."""
        return () if serving.is_untouched(layers) else self.differences(layers)


def came_with(layers: Layers) -> tuple[str, str | None]:
    """Returns the model type that was added last, and the version that added it; ``5`` for all of transformers 5.

    The type is the whole model's if its version is known, else the language model's; the version is None if neither is
    known.
    """
    for name in (layers.whole_type, layers.model_type):
        for version, types in CAME_WITH.items():
            if name in types:
                return name, version
    return layers.model_type, "5" if layers.model_type in class_defaults.load() else None


def _is_later(layers: Layers, version: str) -> bool:
    """Whether this model type came with this version of transformers 4, such as 4.55, or a later one."""
    came = came_with(layers)[1]
    if came in (None, "4.50"):  # 4.50, or any older version
        return False
    return tuple(map(int, came.split("."))) >= tuple(map(int, version.split(".")))


def _in_older_versions(layers: Layers) -> Iterator[Difference]:
    """Yields the differences of earlier versions that have the model type."""
    stated, name, is_yarn = layers.parameters, layers.model_type, layers.kind == "yarn"
    factor, ratio = stated.get("factor", 1.0), layers.length / layers.rope.original_length
    softmax = name in _LOSES_SOFTMAX_SCALE and stated.get("mscale_all_dim")
    switch = layers.kind == "longrope" and layers.changes_with_length and name not in _HAS_BOTH_LISTS
    ratio_text = f"max_position_embeddings / original_max_position_embeddings = {ratio:.6g} for the factor {factor:.6g}"
    softmax_text = f"leave{{s}} out the softmax scale of mscale_all_dim for {name}"
    ramp, length = "put{s} max_position_embeddings into the ramp", "max_position_embeddings"
    long_list = "the long list, always"
    rows = (  # applies, checked version, first fixed version, field, computes, warning
        (name in _IGNORED, "4.45.2", "4.48", "frequencies", "base RoPE", f"ignore{{s}} rope_scaling for {name}"),
        (name in _STOPPED, "4.51.3", "4.54", "frequencies", _ERROR, f"stop{{s}} with an error at a scaled {name}"),
        (softmax, "4.57.1", "5.15", "softmax scale", "none", softmax_text),
        (is_yarn, "4.45.2", "4.51", "original length", length, ramp),
        (
            is_yarn and not layers.is_truncated,
            "4.51.3",
            "4.55",
            "truncate",
            "true",
            Difference.always_truncates().warning,
        ),
        (is_yarn and factor != ratio, "4.51.3", "4.56", "factor", f"{ratio:.10g}", f"take{{s}} {ratio_text}"),
        (switch, "4.45.2", "4.51", "switch", long_list, "always use{s} the long list"),
    )
    for applies, version, fixed_in, field, computes, text in rows:
        if not applies or (fixed_in.startswith("4") and _is_later(layers, fixed_in)):
            continue
        how: How = "run"
        if _is_later(layers, "4.52") and version in ("4.45.2", "4.51.3"):  # those versions lack this type
            version, how = f"before {fixed_in}", "source"
        who = "transformers 4.51 to 4.55" if field == "factor" else f"transformers before {fixed_in}"
        status: Status = "unsupported" if computes == _ERROR else "recomputed"
        yield Difference(field, status, computes, f"{text}; use {fixed_in} or later", who, how, version)


def _in_every_version(layers: Layers) -> Iterator[Difference]:
    """Yields why no version 4 computes these frequencies, the most important reason first."""
    kind, model_type = layers.kind, layers.model_type
    instead = "; load it with transformers 5"
    if not _has_keys(layers):
        where = "" if layers.key == ALL_LAYERS else f" ({layers.key})"
        yield Difference.stops(f"has no keys for a scaled {model_type}{where}{instead}", "base RoPE", "run")
    stated = layers.configuration.text.new.values()
    if model_type in _ONE_THETA and len({each["rope_theta"] for each in stated if isinstance(each, Mapping)}) > 1:
        text = f"has one theta for all layers of {model_type}, so the others change as well{instead}"
        yield Difference("theta", "recomputed", "one theta for all layers", text, how="run")
    accepted = layers.configuration.family.v4_keys
    if "linear" in accepted and kind not in ("default", *accepted):
        what = "per-pair factors" if kind == "longrope" else f"{kind} scaling"
        yield Difference.stops(f"refuses {what} for {model_type}{instead}", how="run")
    if model_type in _IGNORES and kind != "default":
        yield Difference.base_rope(f"ignores rope_scaling for {model_type}{instead}", "run")
    if model_type in _WANTS_ALPHA and kind == "dynamic":
        text = f"supports dynamic scaling of {model_type} only with a fixed alpha, and stops with a KeyError{instead}"
        yield Difference.stops(text, "stops with a KeyError", "run")
    if kind == "proportional":
        text = f"does not support proportional RoPE and stops with a KeyError{instead}"
        yield Difference.stops(text, "stops with a KeyError", "run")


def _has_keys(layers: Layers) -> bool:
    """Whether version 4 reads the parameters of this kind of layer; without scaling, whether it reads theta."""
    if layers.kind != "default":
        return "rope_scaling" in layers.section and layers.key in (ALL_LAYERS, "full_attention")
    keys = layers.configuration.text.v4
    names = [name for name in class_defaults.THETA_NAMES if layers.key in keys.get(name, ())]
    names += ["rope_theta"] if layers.model_type in _ONE_THETA else []
    place = layers.section.get("attn_config") if layers.model_type == "dbrx" else layers.section
    return isinstance(place, Mapping) and any(place.get(name) == layers.parameters["rope_theta"] for name in names)


ENGINE = Transformers4Engine()
