"""A tiny random model of every causal language model that transformers has: a class's own defaults, shrunk.

Sizes shrink by the name of the field, one layer of every kind stays, and :data:`EXCEPTIONS` says what that does not
get right. The trained length is :data:`TRAINED` for all.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from coverage_outcomes import UNMEASURED
from rotary_modules import quiet
from torch import nn
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    Gemma4TextConfig,
    Gemma4UnifiedTextConfig,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)

SEEING = sorted({*MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES} - {*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES})
"""Every model type that ``AutoModelForImageTextToText`` alone knows."""

TYPES = sorted({*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *SEEING} - {*UNMEASURED})
"""Every model type that it or ``AutoModelForCausalLM`` knows, and that can be measured."""

TRAINED = 1024
"""max_position_embeddings of every model here, in tokens."""

VOCABULARY = 96

_LIMITS = {
    TRAINED: """max_position_embeddings n_positions n_ctx original_max_position_embeddings max_seq_len model_max_length
        context_length""",
    128: "mamba_d_ssm",
    VOCABULARY: "vocab_size vocab_size_per_layer_input vocab_offset decoder_vocab_size",
    64: """hidden_size d_model n_embd emb_dim embedding_size embedding_dim hidden_dim dim_model_base lru_width
        out_hidden_size input_embedding_size output_embedding_size word_embed_proj_dim global_head_dim
        encoder_hidden_size decoder_hidden_size hidden_size_global num_position_embeddings adapter_in_dim
        encoder_hash_byte_group_vocab adapter_out_dim adapter_input_size""",
    48: """intermediate_size ffn_dim d_ff n_inner ffn_hidden_size encoder_ffn_dim decoder_ffn_dim dff dim_ff d_inner
        dense_intermediate_size intermediate_size_mlp feed_forward_size block_ffn_dim_multiplier""",
    32: """head_dim kv_channels attention_head_size v_head_dim qk_rope_head_dim qk_nope_head_dim swa_head_dim d_kv
        swa_v_head_dim dim_head index_head_dim mamba_d_head mamba_head_dim mamba_headdim""",
    28: "image_size",
    16: """moe_intermediate_size shared_expert_intermediate_size shared_experts_intermediate_size q_lora_rank
        kv_lora_rank shared_intermediate_size expert_ffn_hidden_size moe_shared_expert_intermediate_size o_lora_rank
        linear_key_head_dim linear_value_head_dim linear_head_dim mamba_d_state ssm_state_size state_size rotary_dim
        laurel_rank""",
    8: """sliding_window sliding_window_size attention_chunk_size window_size attention_window_size local_attention
        index_topk time_step_rank mamba_dt_rank hidden_size_per_layer_input""",
    4: "num_local_experts num_experts n_routed_experts moe_num_experts mamba_n_heads mamba_num_heads n_mamba_heads",
    2: """num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads attention_heads
        num_encoder_attention_heads num_decoder_attention_heads num_key_value_heads num_kv_heads kv_n_heads depth
        num_query_groups num_global_key_value_heads index_n_heads mamba_expand linear_num_key_heads expand
        linear_num_value_heads linear_num_heads num_experts_per_tok num_experts_per_token moe_topk moe_k moe_top_k
        type_vocab_size num_codebooks""",
    1: "n_group topk_group n_groups num_expert_group mamba_n_groups mamba_ngroups",
}
_SIZES = {name: limit for limit, names in _LIMITS.items() for name in names.split()}
"""The largest value of a field, by its name."""

_DEPTHS = (
    "num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers num_encoder_layers num_decoder_layers"
).split()

_DERIVED = ("qk_head_dim", "attention_hidden_size", "attention_head_dim", "hybrid_layer_ids", "transformers_version")
"""Fields that classes compute from others."""

_BOTH = {"layer_types": ["full_attention", "sliding_attention"]}
_MOE = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1, "first_k_dense_replace": 1}
_GEMMA4 = {"per_layer_config": {"01": {"head_dim": 64}}, "num_kv_shared_layers": 0}
_ASSISTANT = {"text_config": _GEMMA4 | {"num_kv_shared_layers": 2}, "backbone_hidden_size": 64}
_GEMMA3N = {
    "num_kv_shared_layers": 2,
    "layer_types": 2 * ["sliding_attention", "full_attention"],
    "intermediate_size": 4 * [48],
    "activation_sparsity_pattern": [0.95, 0.95, 0.0, 0.0],
}
_INDEXER = {
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 32,
    "indexer_budget": 8,
    "indexer_compress_ratio": 2,
    "hc_lowrank": 8,
    "ple_embed_dim": 64,
}
_DOTS3 = {"per_layer_config": {"02": {"qk_nope_head_dim": 96}}, "head_dim": 128}
_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 2.0, "original_max_position_embeddings": TRAINED}


_MROPE = "cosmos3_edge glm46v glm4v glm_ocr glmga paddleocr_vl qwen2_5_omni_thinker qwen2_5_vl qwen2_vl".split()


def _mrope(*section: int, **others: float) -> dict[str, Any]:
    """Sections that add up to the pairs of a tiny head; the classes' own are those of a head of 128."""
    stated = {"rope_type": "default", "rope_theta": 10000.0, **others, "mrope_section": [*section]}
    return {"rope_parameters": stated}


_COMPASS = {
    "rope_parameters": {
        f"{kind}_attention": {"rope_type": "default", "rope_theta": theta}
        for kind, theta in (("full", 1000000.0), ("sliding", 10000.0))
    }
}

EXCEPTIONS: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},  # its default has no attention layer
    "chameleon": {"vocabulary_map": {"<image>": 8}},
    "cohere_compass": {"text_config": _COMPASS | _BOTH},
    "codegen": {"n_head": 4},  # split over four shards by its code
    "cohere_compass_text": _COMPASS | _BOTH,  # leaves every layer type to the file
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0}},  # what every release states
    **dict.fromkeys(("deepseek_v2", "dots1"), _MOE),
    "deepseek_v4": {  # the kind of layers that uses the other table
        "layer_types": ["sliding_attention", "heavily_compressed_attention", "compressed_sparse_attention"],
        "head_dim": 64,
        "o_groups": 2,
    },
    "deepseek_ocr2": {"text_config": {"num_experts_per_tok": 2, "mlp_layer_types": ["dense", "sparse"]}},
    "dots3_note_text": _DOTS3,
    "dots3_note": {"text_config": _DOTS3, "vision_config": {"per_layer_config": {}}},
    "gemma3n_text": _GEMMA3N,
    "gemma3n": {"text_config": _GEMMA3N},
    **dict.fromkeys(("gemma4_text", "gemma4_unified_text"), _GEMMA4),
    **{key: {"text_config": _GEMMA4} for key in ("gemma4", "gemma4_unified")},
    **dict.fromkeys(("gemma4_assistant", "gemma4_unified_assistant"), _ASSISTANT),
    "ernie4_5_vl_moe": {"text_config": _mrope(6, 6, 4)},
    "falcon_h1": {"mamba_d_head": 32},
    "glm4v_moe": {"text_config": _mrope(2, 3, 3, partial_rotary_factor=0.5)},
    "glm5_next": {"text_config": {"index_kpool": 8}},
    "granite4_vision": {"downsample_rate": "1/2", "deepstack_layer_map": []},
    "granitemoehybrid": {"position_embedding_type": "rope", "layer_types": ["linear_attention", "full_attention"]},
    "hrm_text": {"num_hidden_layers": 8, "num_layers_per_stack": 1},
    **{key: {"head_dim": 32} for key in ("hunyuan_v1_dense", "hunyuan_v1_moe")},  # null, which their code cannot use
    "inkling2": {"vision_config": {"text_hidden_size": 64}},
    "lfm2": {"layer_types": ["conv", "full_attention"], "full_attn_idxs": [1]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    **dict.fromkeys(("laguna", "mellum"), _BOTH),
    "longcat_flash": {"head_dim": 32},  # of the slice that rotates, which it does not derive
    "mamba2": {"num_heads": 4, "head_dim": 32},
    "mimo_v2_flash": {"num_attention_heads": 4, "num_key_value_heads": 2},  # its sliding layers have twice as many
    "ministral": _BOTH | {"head_dim": 32},
    "mistral_large4": {"text_config": {"rope_parameters": _YARN}},
    "nemotron": {"num_key_value_heads": 2},
    "qwen4_exp_text": _INDEXER,
    "qwen4_exp": {"text_config": _INDEXER},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "reformer": {"is_decoder": True, "axial_pos_embds_dim": [32, 32]},
    "step3p7": {"text_config": {"sliding_window": 8}},
    "xlnet": {"d_head": 32},
    "zamba": {"num_hidden_layers": 4, "layers_block_type": ["linear_attention", "hybrid"] * 2},
    "zamba2": {  # its rotary embedding is off by default
        "use_mem_rope": True,
        "num_hidden_layers": 2,
        "layers_block_type": ["linear_attention", "hybrid"],
        "n_mamba_heads": 4,
    },
    **{name: {"text_config": _mrope(4, 6, 6)} for name in _MROPE},
    "zaya": {"layer_types": ["hybrid", "hybrid_sliding"], "sliding_window": 8},
}
"""What a tiny configuration says beside the shrunken defaults, and why where that is not plain."""


def tiny_config(model_type: str, **changes: Any) -> dict[str, Any]:
    """The ``config.json`` that transformers saves of a tiny model of this type."""
    with quiet():
        fields = _merged(_shrunk(_defaults(model_type)), EXCEPTIONS.get(model_type, {}) | changes)
        config = CONFIG_MAPPING[model_type].from_dict(fields)
        return json.loads(config.to_json_string(use_diff=False)) | {"model_type": model_type}


def build(folder: Path, seed: int = 0) -> Any:
    """The stock model of the ``config.json`` in a folder, with random weights, on the CPU."""
    torch.manual_seed(seed)
    with quiet(), without_timm(), drafters():
        config = AutoConfig.from_pretrained(folder)
        if config.model_type.startswith("musicgen"):  # whose auto class asks for the whole and takes its decoder
            cls: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
            return cls(config.decoder).eval()
        auto = AutoModelForImageTextToText if config.model_type in SEEING else AutoModelForCausalLM
        return _shaken(auto.from_config(config).eval())


def _shaken(model: Any) -> Any:
    """Classes start some weights at zero, which would hide what attention does."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model


def logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """What a model says about these ids, [tokens, vocabulary]; a drafter's on the states of a main model."""
    given: dict[str, Any] = {"input_ids": ids}
    if model.config.model_type.endswith("_assistant"):
        given = _of_a_main_model(model.config, ids)
    with quiet(), torch.no_grad():
        return model(**given, use_cache=False).logits[0]


def _of_a_main_model(config: Any, ids: torch.Tensor) -> dict[str, Any]:
    """Random embeddings, keys and values, as the model that a Gemma 4 assistant drafts for would hand over."""
    draw = partial(torch.randn, generator=torch.Generator().manual_seed(0))
    text, count = config.get_text_config(), ids.shape[1]
    heads = {key: text.per_layer_config[key] for key in text.layer_types}
    shape = {key: (1, part.num_key_value_heads, count, part.head_dim) for key, part in heads.items()}
    return {
        "output_hidden_states": True,  # which keeps 5.23.0 from slicing inputs that a drafter does not have
        "inputs_embeds": draw(1, count, 2 * config.backbone_hidden_size),
        "position_ids": torch.arange(count)[None],
        "shared_kv_states": {key: (draw(*size), draw(*size)) for key, size in shape.items()},
    }


def _defaults(model_type: str) -> dict[str, Any]:
    if model_type == "gemma4_assistant":  # its class refuses its own defaults
        text = {"model_type": "gemma4_text", "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}
        text = CONFIG_MAPPING["gemma4_text"](**text).to_dict()
        return {"model_type": model_type, "text_config": text, "backbone_hidden_size": 64}
    return CONFIG_MAPPING[model_type]().to_dict()


def _shrunk(fields: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration, and those inside it, with small sizes and one layer of each kind."""
    small = {key: _small(key, value) for key, value in fields.items() if key not in _DERIVED}
    if fields.get("qk_rope_head_dim") and fields.get("head_dim") == fields["qk_rope_head_dim"]:
        del small["head_dim"]  # MLA's classes derive it
    return small | _shallow(fields)


def _small(key: Any, value: Any) -> Any:
    if isinstance(value, dict):
        return _shrunk(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return value
    if str(key).endswith("_token_id"):
        return min(value, 8)
    return min(_SIZES.get(key, value), value) if value > 0 else value


def _shallow(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The depth and all lists with an entry per layer, of the first layer of every kind; two layers at least."""
    depths = {name: fields[name] for name in _DEPTHS if isinstance(fields.get(name), int)}
    depth = max(depths.values(), default=0)
    lists = {key: value for key, value in fields.items() if isinstance(value, list) and len(value) == depth > 0}
    indices = [key for key, value in lists.items() if value == list(range(depth))]
    first: dict[tuple[str, ...], int] = {}
    for layer in range(depth):
        first.setdefault(tuple(repr(value[layer]) for key, value in lists.items() if key not in indices), layer)
    chosen = list(first.values())  # in order
    if len(chosen) == 1 and depth > 1:
        chosen.append(1)
    small = {name: len(chosen) if value == depth else min(value, 2) for name, value in depths.items()}
    return (
        small
        | {key: [value[layer] for layer in chosen] for key, value in lists.items()}
        | {key: list(range(len(chosen))) for key in indices}
    )


def _merged(fields: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Changes over fields; inside a part's configuration one by one."""
    new = dict(fields)
    for key, value in changes.items():
        inside = isinstance(value, dict) and isinstance(fields.get(key), dict) and key.endswith("_config")
        new[key] = _merged(fields[key], value) if inside and key != "per_layer_config" else value
    if "layer_types" in changes:
        new["num_hidden_layers"] = len(changes["layer_types"])
    return new


@contextmanager
def without_timm() -> Iterator[None]:
    """Some vision towers are timm models; an empty module stands for one where timm is not installed."""
    real = AutoModel.from_config

    def from_config(config: Any, *args: Any, **kwargs: Any) -> nn.Module:
        return (
            nn.Identity() if config.model_type in ("gemma3n_vision", "timm_wrapper") else real(config, *args, **kwargs)
        )

    with mock.patch.object(AutoModel, "from_config", from_config):
        yield


@contextmanager
def drafters() -> Iterator[None]:
    """Lets Gemma 4's assistants be built: transformers 5.23.0 refuses that all their layers share keys and values."""
    with ExitStack() as stack:
        for cls in (Gemma4TextConfig, Gemma4UnifiedTextConfig):
            stack.enter_context(mock.patch.object(cls, "kv_sharing_modes", _sharing(cls.kv_sharing_modes)))
        yield


def _sharing(real: Any) -> property:
    def modes(config: Any) -> list[str | None]:
        shared, count = config.num_kv_shared_layers, config.num_hidden_layers
        return ["reuse"] * count if shared == count else real.fget(config)

    return property(modes)
