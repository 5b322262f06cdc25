"""The healthy inputs that mutation starts from. Nothing is read from anywhere: configurations are written out here,
patched folders, GGUF files and runs are made by the commands themselves."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

_GEOMETRY: dict[str, Any] = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 96,
    "vocab_size": 61,
    "head_dim": 16,
    "max_position_embeddings": 256,
}
_KINDS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 64}
_PER_KIND = {
    "full_attention": {"rope_type": "default", "rope_theta": 1000000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 32, "beta_slow": 1}
_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_LONGROPE = {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [1.0, 1.1, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0]}


def _config(model_type: str, **changes: Any) -> dict[str, Any]:
    config = {"model_type": model_type, "architectures": ["X"], **_GEOMETRY, "rope_theta": 10000.0} | changes
    return {key: value for key, value in config.items() if value is not None}


CONFIGS: dict[str, dict[str, Any]] = {
    "llama": _config("llama"),
    "llama in v5": _config("llama", rope_theta=None, rope_parameters={"rope_type": "default", "rope_theta": 5e5}),
    "llama 3": _config("llama", rope_scaling=_LLAMA3),
    "llama linear": _config("llama", rope_scaling={"type": "linear", "factor": 2.0}),
    "llama dynamic": _config("llama", rope_scaling={"rope_type": "dynamic", "factor": 2.0}),
    "qwen2": _config("qwen2", head_dim=None, sliding_window=128, use_sliding_window=False, max_window_layers=2),
    "qwen2 yarn": _config("qwen2", rope_scaling=_YARN, rope_theta=1000000.0),
    "qwen2_vl": _config("qwen2_vl", rope_scaling={"type": "mrope", "mrope_section": [2, 3, 3]}),
    "phi3": _config("phi3", rope_scaling=_LONGROPE, original_max_position_embeddings=64),
    "gemma2": _config("gemma2", **_KINDS, query_pre_attn_scalar=16),
    "gemma3_text": _config("gemma3_text", **_KINDS, rope_local_base_freq=10000.0, rope_theta=1000000.0),
    "gemma3 in v5": _config("gemma3_text", **_KINDS, rope_theta=None, rope_parameters=_PER_KIND),
    "gemma3": {"model_type": "gemma3", "text_config": _config("gemma3_text", **_KINDS), "vision_config": {"x": 1}},
    "gemma4_text": _config("gemma4_text", **_KINDS, rope_theta=None, rope_parameters=_PER_KIND, global_head_dim=32),
    "olmo3": _config("olmo3", **_KINDS, rope_scaling=_YARN),
    "gpt_neox": _config("gpt_neox", head_dim=None, rope_theta=None, rotary_pct=0.25, rotary_emb_base=10000),
    "gpt_oss": _config("gpt_oss", **_KINDS, rope_scaling=_YARN | {"truncate": False}, rope_theta=150000.0),
    "deepseek_v3": _config(
        "deepseek_v3",
        head_dim=None,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=8,
        q_lora_rank=16,
        kv_lora_rank=16,
        rope_scaling={**_YARN, "type": "yarn", "mscale": 1.0, "mscale_all_dim": 1.0},
    ),
    "glm4": _config("glm4", partial_rotary_factor=0.5),
    "cohere2": _config("cohere2", **_KINDS, sliding_window_pattern=2),
    "mistral": _config("mistral", sliding_window=None),
    "granite_swa": _config("granite_swa", layer_rope_theta=[10000.0, 500000.0], **_KINDS),
    "minimax_m2": _config("minimax_m2", rotary_dim=8),
    "falcon": _config("falcon", head_dim=None, alibi=False, new_decoder_architecture=True),
    "of its own code": _config("stranger", auto_map={"AutoModelForCausalLM": "modeling_stranger.StrangerForCausalLM"}),
}

COMPANIONS: dict[str, dict[str, Any]] = {
    "tokenizer_config.json": {
        "model_max_length": 256,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
    },
    "generation_config.json": {"max_length": 200, "max_new_tokens": 64, "bos_token_id": 0, "eos_token_id": [1, 2]},
    "params.json": {"dim": 64, "n_layers": 2, "rope_theta": 10000.0, "max_seq_len": 256},
}
"""Files beside a configuration that patching reads."""

CARD = """---
license: apache-2.0
base_model: org/model
tags:
- text-generation
model-index:
- name: x
  results: []
---

# A model

Its makers' words.
"""

ALL_SHARDS = {
    f"model-0000{n}-of-00003.safetensors": [f"model.layers.{n}.{part}.weight" for part in ("q", "k")] for n in (1, 2, 3)
}
INDEX: dict[str, Any] = {
    "metadata": {"total_size": 123456, "total_parameters": 789},
    "weight_map": {tensor: name for name, tensors in ALL_SHARDS.items() for tensor in tensors},
}

SPECS = (
    *("yarn:factor=4", "yarn:factor=4,beta_fast=16,beta_slow=2", "yarn:factor=4,truncate=false", "linear:factor=2"),
    *("yarn:factor=4,mscale=1,mscale_all_dim=0.8", "yarn:factor=4,attention_factor=1.1,extrapolation_factor=0.9"),
    *("ntk:factor=4", "ntk-su:factor=4", "ntk-mixed:factor=4,b=0.6", "abf:rope_theta=500000", "dynamic:factor=2"),
    *("ntk-critical:factor=4,critical_pair=3.5", "cope:clipped_pairs=3", "cope"),
    *("ntk-by-parts:factor=4,beta_fast=32", "dynamic-yarn:beta_fast=16", "llama3:factor=8,low_freq_factor=1"),
    *("proportional:partial_rotary_factor=0.5", "giraffe:scale_power=0.1,truncate=2", "base", "as-is"),
    *("resonance:over=yarn,factor=4", "longrope:short_factor=[1,1,1,1,1,1,1,1],long_factor=[1,1,1,2,2,3,4,4],factor=4"),
    *("table:factors=[1,1,1,2,2,3,4,4],attention_factor=1.1", "table:inv_freq=[1,0.3,0.1,0.03,0.01,0.003,0.001,0]"),
    *("ropescale.schedules::Yarn", "mine.py::Half", "mine.py::half", "factors.json", "yarn", "ntk", "giraffe"),
    '{"name": "yarn", "factor": 8}',
    '{"name": "resonance", "over": "yarn", "factor": 8}',
    '{"full_attention": "yarn:factor=4", "sliding_attention": "as-is"}',
    '{"name": "table", "factors": [1, 1, 1, 2, 2, 3, 4, 4]}',
)
"""Specs; those of a table are for the eight pairs that most of the configurations have."""

OBJECTS: tuple[Any, ...] = (
    {"name": "table", "factors": [1.0, 1.0, 1.1, 1.5, 2.0, 2.5, 3.0, 4.0]},
    {"name": "table", "factors": [1.0, 1.0, 1.1, 1.5, 2.0, 2.5, 3.0, 4.0], "attention_factor": 1.1},
    {"name": "table", "inv_freq": [1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0]},
    {"name": "longrope", "short_factor": [1.0] * 8, "long_factor": [1.0] * 4 + [4.0] * 4, "factor": 4.0},
    {"name": "yarn", "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": True, "mscale": 1.0},
    {"name": "resonance", "over": "yarn", "factor": 4.0},
    {"full_attention": {"name": "yarn", "factor": 4.0}, "sliding_attention": {"name": "linear", "factor": 2.0}},
)
"""What a factor file may hold."""

OWN = '''from dataclasses import dataclass

from ropescale import Frequencies, Rope


@dataclass(frozen=True)
class Half:
    """Slow only the slow half of the pairs."""

    factor: float = 2.0

    def __call__(self, rope: Rope, length: int) -> Frequencies:
        inv_freq = rope.inv_freq()
        inv_freq[len(inv_freq) // 2:] = [f / self.factor for f in inv_freq[len(inv_freq) // 2:]]
        return Frequencies(inv_freq)


def half(rope, length):
    return Half()(rope, length)
'''

GGUF: tuple[dict[str, Any], ...] = (
    {},
    {"arch": "qwen2"},
    {
        "arch": "llama",
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 64,
    },
    {"arch": "llama", "tables": {"rope_freqs.weight": [1.0] * 4 + [8.0] * 4}},
    {"arch": "phi3", "tables": {"rope_factors_long.weight": [2.0] * 8, "rope_factors_short.weight": [1.0] * 8}},
    {"arch": "gemma3", "attention.sliding_window": 64},
    {"arch": "deepseek2", "rope.scaling.yarn_log_multiplier": 0.1},
    {"general.name": "é", "tokenizer.x": ["a", "b"], "numbers": [1, 2, 3], "flag": True},
)
"""Keys of files that ``gguf_models.write_keys`` makes."""

TEXT = "It was a bright cold day in April, and the clocks were striking thirteen. "

EVAL = "--lengths 32,64 --schedule yarn:factor=2".split()
PASSKEY = "--lengths 480,600 --depths 0,1 --trials 2 --bos no --schedule yarn:factor=8".split()


def write_checkpoint(folder: Path, config: dict[str, Any] | bytes) -> Path:
    """A folder with a configuration and everything that may lie beside it; the weights are a word."""
    folder.mkdir()
    (folder / "config.json").write_bytes(config if isinstance(config, bytes) else json.dumps(config).encode())
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "README.md").write_text(CARD)
    for name, content in COMPANIONS.items():
        (folder / name).write_text(json.dumps(content))
    return folder


class Made:
    """Seeds that take a while, made once below a folder, and copied from there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, name: str, make: Callable[[Path], None]) -> Path:
        """The folder of this name; ``make`` fills it when it is first asked for."""
        found = self.folder / name
        if not found.exists():
            half = self.folder / f"{name}.half"
            shutil.rmtree(half, ignore_errors=True)
            half.mkdir(parents=True)
            make(half)
            half.rename(found)
        return found
