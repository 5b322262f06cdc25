"""transformers 4, which reads ``rope_theta`` and ``rope_scaling``, but not ``rope_parameters``."""

from collections.abc import Iterable, Iterator, Mapping

from ..configs import class_defaults
from ..configs.class_defaults import ALL_LAYERS
from ..configs.configuration import Configuration, unread_by_v4
from ..configs.finding import ORIGINAL
from .base import BASE_ROPE, EVERY, Command, Difference, Engine, Layers, Serving
from .model_code import is_in_transformers
from .transformers5 import foreign_code, keeps_state, lacked

RUN = frozenset(
    "apertus arcee bitnet cohere cohere2 dbrx deepseek_v2 deepseek_v3 diffllama dots1 ernie4_5 exaone4 falcon gemma "
    "gemma2 gemma3_text glm glm4 gpt_neox gpt_neox_japanese gpt_oss granite granitemoe granitemoehybrid helium "
    "hunyuan_v1_dense hunyuan_v1_moe jetmoe llama longcat_flash minimax mistral mixtral modernbert-decoder nemotron "
    "olmo olmo2 olmo3 olmoe persimmon phi phi3 phimoe qwen2 qwen2_moe qwen3 qwen3_moe seed_oss smollm3 "
    "stablelm starcoder2 vaultgemma zamba2".split()
)
"""Model types whose rotary modules tests build in transformers 4; for other types only the shared code was read."""

TYPES = RUN | frozenset(
    "aria_text bamba blt cohere2_vision deepseek_vl deepseek_vl_hybrid doge emu3_text_model ernie4_5_moe evolla "
    "falcon_h1 flex_olmo florence2 gemma3n_text glm4_moe glm4v glm4v_moe glm4v_moe_text glm4v_text granitemoeshared "
    "internvl janus kosmos-2.5 lfm2 lfm2_vl llama4_text ministral mllama_text_model moshi ovis2 perception_lm "
    "phi4_multimodal qwen2_5_omni_thinker qwen2_5_vl qwen2_5_vl_text qwen2_vl qwen2_vl_text qwen3_next "
    "qwen3_omni_moe_thinker qwen3_vl qwen3_vl_moe qwen3_vl_moe_text qwen3_vl_text recurrent_gemma".split()
)
"""The model types that both ropescale and transformers 4 support. Vision-language models need 4.51 or newer."""

LACKED = frozenset(
    "cohere_compass cosmos3_edge cosmos3_omni deepseek_ocr2 diffusion_gemma ernie4_5_vl_moe exaone4_5 fast_vlm "
    "glm46v glm5_next glm_ocr glmga granite4_vision granite_docling hunyuan_vl hyperclovax_vision_v2 inkling2 "
    "inkling_mm_model kimi_k25 lfm3_vl lighton_ocr minicpm_ocr minicpmv4_6 minicpmv4_7 minimax_m3_vl mistral4 "
    "mistral_large4 molmo2 muse_glimmer muse_spark nemotron_h_omni paddleocr_vl pi0 pp_chart2table pp_formulanet "
    "qianfan_ocr step3p7 t5gemma2 unlimited_ocr video_llama_3".split()
)
"""Vision-language types that were added with transformers 5, even if :data:`TYPES` has their language model's type."""

_IGNORES = ("dbrx", "nemotron")
"""Model types that read a theta (DBRX in ``attn_config``), but no ``rope_scaling``."""

_ONE_THETA = ("modernbert-decoder", "olmo3")
"""Model types with one theta for all layers, which can have two in transformers 5."""


class Transformers4Engine(Engine):
    """transformers 4."""

    name = "transformers 4"
    version = "4.57.1"
    run = dict.fromkeys(RUN, EVERY)

    def differences(self, layers: Layers) -> Iterator[Difference]:
        """Yields the differences of transformers 4 for one kind of layer."""
        reason = next(_in_no_version(layers), None)
        if reason is not None:
            yield reason
            return
        yield from foreign_code(layers)
        if layers.changes_with_length:
            yield keeps_state(layers)
        if layers.model_type == "deepseek_v2" and layers.parameters.get("mscale_all_dim"):
            text = "leaves out the softmax scale of mscale_all_dim for deepseek_v2"
            yield Difference("softmax scale", "dropped", 1, text)

    def serve(self, serving: Serving) -> list[Command]:
        """Returns Python code that loads the model, and sets the keys if the schedule is not saved in the folder."""
        changed = {} if serving.is_written else serving.changes()
        return [serving.snippet({key: changed[key] for key in changed if key != "rope_parameters"})]

    def remaining(self, serving: Serving, layers: Layers) -> Iterable[Difference]:
        """Returns the differences that remain with the exported code.

        There are none for layers without scaling that have their vendor's keys.
        """
        if lacked_type(layers.configuration) or lacked(layers):
            return self.differences(layers)
        if serving.is_written and "rope_parameters" not in serving.stored.section and layers.kind == "default":
            return ()
        if serving.is_written and unread_by_v4(serving.stored):
            return [Difference.base_rope("does not read rope_parameters")]
        return self.differences(layers)


def lacked_type(configuration: Configuration) -> str:
    """Returns the model type that keeps transformers 4 from loading a model; else ""."""
    whole = configuration.whole_type
    model_type = configuration.model_type
    if whole in LACKED:
        return whole
    known = {whole, model_type} & TYPES or not is_in_transformers(model_type)
    return "" if known else model_type


def is_met(configuration: Configuration) -> bool:
    """Whether transformers 4 has the model, and would not read the rope parameters of the configuration."""
    return not lacked_type(configuration) and unread_by_v4(configuration)


def _in_no_version(layers: Layers) -> Iterator[Difference]:
    """Yields why no version of transformers 4 computes these frequencies, with the most important reason first."""
    kind = layers.kind
    model_type = layers.model_type
    if name := lacked_type(layers.configuration):
        yield Difference.stops(f"lacks {name}, which came with transformers 5", "stops: no such model type")
    elif lacked(layers):  # nothing is known
        return
    if not _has_keys(layers):
        where = "" if layers.key == ALL_LAYERS else f" ({layers.key})"
        yield Difference.other_table(f"has no keys for a scaled {model_type}{where}", BASE_ROPE)
    stated = layers.configuration.text.new.values()
    if model_type in _ONE_THETA and len({each["rope_theta"] for each in stated if isinstance(each, Mapping)}) > 1:
        text = f"has one theta for all layers of {model_type}, so the other layers change as well"
        yield Difference("theta", "recomputed", "one theta for all layers", text)
    accepted = layers.configuration.family.v4_keys
    if "linear" in accepted and kind not in ("default", *accepted):
        what = "per-pair factors" if kind == "longrope" else f"{kind} scaling"
        yield Difference.stops(f"refuses {what} for {model_type}")
    if model_type in _IGNORES and kind != "default":
        yield Difference.base_rope(f"ignores rope_scaling for {model_type}")
    if model_type.startswith("hunyuan_v1") and kind == "dynamic" and layers.changes_with_length:
        text = f"supports dynamic scaling of {model_type} only with a fixed alpha, and stops with a KeyError"
        yield Difference.stops(text, "stops with a KeyError")
    longest = layers.rope.max_length
    is_outside = layers.lacks_original or (kind == "longrope" and ORIGINAL not in layers.section)
    if is_outside and kind == "llama3":
        yield Difference.stops(f"stops without {ORIGINAL} in rope_scaling", "stops with a KeyError")
    elif is_outside and longest != layers.rope.original_length:
        text = f"does not read the original length where it is stated, and takes {longest:,} tokens"
        yield Difference("original length", "recomputed", longest, text)
    if kind == "proportional":
        text = "does not support proportional RoPE and stops with a KeyError"
        yield Difference.stops(text, "stops with a KeyError")


def _has_keys(layers: Layers) -> bool:
    """Whether transformers 4 reads the parameters of this kind of layer, or only theta if there is no scaling."""
    if layers.kind != "default":
        return "rope_scaling" in layers.section and layers.key in (ALL_LAYERS, "full_attention")
    keys = layers.configuration.text.v4
    names = [name for name in class_defaults.THETA_NAMES if layers.key in keys.get(name, ())]
    names += ["rope_theta"] if layers.model_type in _ONE_THETA else []
    place = layers.section.get("attn_config") if layers.model_type == "dbrx" else layers.section
    if layers.key == ALL_LAYERS and not unread_by_v4(layers.configuration):
        return True
    return isinstance(place, Mapping) and any(place.get(name) == layers.parameters["rope_theta"] for name in names)


ENGINE = Transformers4Engine()
