"""Configurations as their ``config.json`` has them, and folders that hold one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 128,
    "num_attention_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
}
"""A small Llama: 32 pairs."""

CONFIG = LLAMA | {"max_position_embeddings": 256}
"""The same, trained at 256 tokens."""

LLAMA31_SCALING = {
    "factor": 8.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}
LISTS = {"short_factor": [1.0 + 0.05 * i for i in range(16)], "long_factor": [1.1 * 1.2**i for i in range(16)]}
PHI3_128K = {
    "model_type": "phi3",
    "hidden_size": 128,
    "num_attention_heads": 4,
    "max_position_embeddings": 131072,
    "original_max_position_embeddings": 4096,
    "rope_theta": 10000.0,
    "rope_scaling": {"type": "longrope", **LISTS},
}
YARN_32 = {
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "factor": 32.0,
    "original_max_position_embeddings": 4096,
    "rope_type": "yarn",
    "truncate": False,
}
GPT_OSS = {
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "num_attention_heads": 64,
    "head_dim": 64,
    "max_position_embeddings": 131072,
    "rope_theta": 150000,
    "rope_scaling": YARN_32,
    "sliding_window": 128,
}
QWEN3 = {
    "model_type": "qwen3",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "rope_theta": 1000000,
    "rope_scaling": None,
}
DEEPSEEK_YARN = {
    "beta_fast": 32,
    "beta_slow": 1,
    "factor": 40,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 4096,
    "type": "yarn",
}


def write_checkpoint(
    folder: Path, config: Mapping[str, Any] = CONFIG, files: Mapping[str, str | bytes] | None = None
) -> Path:
    """Writes a folder with this configuration and these other files, and returns it."""
    for name, content in ({"config.json": json.dumps(config)} | dict(files or {})).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder
