"""Configurations of many kinds of models, by name: to plan schedules for, and to export to engines."""

from __future__ import annotations

from typing import Any

from configurations import (
    DEEPSEEK,
    DEEPSEEK_V3,
    GPT_OSS,
    LLAMA,
    LLAMA31,
    PHI3_128K,
    QWEN3,
    in_v5,
    plain,
    yarn,
)

PHI3 = {"model_type": "phi3", "hidden_size": 128, "num_attention_heads": 4, "max_position_embeddings": 4096}
GEMMA3 = plain("gemma3_text", 64, 2, 8192, 1e6, head_dim=128, rope_local_base_freq=1e4)
OLMO3 = plain("olmo3", 4096, 32, 65536, 500000, num_hidden_layers=4, rope_scaling=yarn(8.0, rope_type="yarn"))
OLMO3["layer_types"] = ["sliding_attention"] * 3 + ["full_attention"]
OLMO3["rope_scaling"] |= {"original_max_position_embeddings": 8192, "attention_factor": 1.2079441541679836}
"""As it is published: only its full-attention layers are scaled."""

PLANNED: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "llama 3.1": LLAMA31,
    "v5 llama": in_v5(LLAMA),
    "qwen3": QWEN3,
    "gpt-oss": GPT_OSS,
    "phi3": PHI3,
    "phi3 128k": PHI3_128K,
    "phimoe": {"model_type": "phimoe"},
    "gpt_neox": {"model_type": "gpt_neox", "rotary_pct": 0.25, "rotary_emb_base": 20000},
    "stablelm": {"model_type": "stablelm", "partial_rotary_factor": 0.25, "rope_theta": 10000},
    "gemma2": {"model_type": "gemma2"},
    "gemma3": GEMMA3,
    "olmo3": {"model_type": "olmo3", "rope_theta": 500000},
    "modernbert-decoder": {"model_type": "modernbert-decoder", "global_rope_theta": 1.6e5, "local_rope_theta": 1e4},
    "mixtral": {"model_type": "mixtral", "hidden_size": 512, "num_attention_heads": 8, "rope_theta": 1e6},
    "hunyuan": {"model_type": "hunyuan_v1_dense", "hidden_size": 512, "num_attention_heads": 8, "rope_theta": 1e4},
    "deepseek_v3": DEEPSEEK_V3,
    "deepseek_v4": {"model_type": "deepseek_v4", "max_position_embeddings": 65536},
    "cohere2_moe": {"model_type": "cohere2_moe", "max_position_embeddings": 8192},
    "granite_swa": {"model_type": "granite_swa", "layer_rope_theta": [10000.0] * 39 + [0]},
    "glm4_moe with half a pair": {"model_type": "glm4_moe", "head_dim": 42, "max_position_embeddings": 4096},
    "gemma4": {"model_type": "gemma4_text", "max_position_embeddings": 8192},
    "dbrx": {"model_type": "dbrx", "d_model": 128, "n_heads": 2, "max_seq_len": 2048},
}

GEMMA3_64 = {"model_type": "gemma3_text", "max_position_embeddings": 8192, "head_dim": 64}
EXPORTED: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "llama 3.1": LLAMA31,
    "qwen3": {"model_type": "qwen3", "max_position_embeddings": 8192, "head_dim": 64},
    "gpt_neox": plain("gpt_neox", 256, 2, 2048, rotary_pct=0.25, rotary_emb_base=10000),
    "phi3": LLAMA | {"model_type": "phi3"},
    "mixtral": plain("mixtral", 128, 2, 4096, 1e6, head_dim=None),
    "gemma3_text": GEMMA3_64,
    "gemma3": {"model_type": "gemma3", "text_config": GEMMA3_64},
    "dbrx": {"model_type": "dbrx", "d_model": 128, "n_heads": 2, "max_seq_len": 2048},
    "deepseek": DEEPSEEK,
    "gpt-oss": {"model_type": "gpt_oss", "max_position_embeddings": 131072},
    "glm4": LLAMA | {"model_type": "glm4", "partial_rotary_factor": 0.5},
    "qwen2": LLAMA | {"model_type": "qwen2"},
    "v5": in_v5(LLAMA, rope_theta=500000.0),
    "mimo": {"model_type": "mimo_v2_flash", "max_position_embeddings": 8192},
    "minimax": {"model_type": "minimax_m3_vl", "text_config": {"model_type": "minimax_m3_vl_text"}},
}
