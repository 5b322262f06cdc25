"""Configurations as their ``config.json`` has them, and folders that hold one."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def plain(model_type: str, hidden: int, heads: int, length: int, theta: float = 10000.0, **more: Any) -> dict[str, Any]:
    """A configuration in the keys of transformers 4."""
    shape = {"model_type": model_type, "hidden_size": hidden, "num_attention_heads": heads}
    return {**shape, "max_position_embeddings": length, "rope_theta": theta, **more}


def yarn(factor: float, **more: Any) -> dict[str, Any]:
    """YaRN's scaling of a model that was trained at 4,096 tokens."""
    return {"beta_fast": 32.0, "beta_slow": 1.0, "factor": factor, "original_max_position_embeddings": 4096, **more}


LLAMA = plain("llama", 128, 2, 4096, head_dim=64)
"""A small Llama: 32 pairs."""

CONFIG = LLAMA | {"max_position_embeddings": 256}
"""The same, trained at 256 tokens."""

DEEPSEEK = plain("deepseek_v3", 64, 2, 4096, qk_rope_head_dim=32)
LLAMA31_SCALING = {
    "factor": 8.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}
LLAMA31 = LLAMA | {"max_position_embeddings": 131072, "rope_theta": 500000.0, "rope_scaling": LLAMA31_SCALING}
LISTS = {"short_factor": [1.0 + 0.05 * i for i in range(16)], "long_factor": [1.1 * 1.2**i for i in range(16)]}
PHI3_128K = plain("phi3", 128, 4, 131072, original_max_position_embeddings=4096)
PHI3_128K["rope_scaling"] = {"type": "longrope", **LISTS}
YARN_32 = yarn(32.0, rope_type="yarn", truncate=False)
GPT_OSS = plain("gpt_oss", 2880, 64, 131072, 150000, head_dim=64, rope_scaling=YARN_32, sliding_window=128)
GEMMA3 = plain("gemma3_text", 64, 4, 8192, head_dim=16, sliding_window=512)
del GEMMA3["rope_theta"]
GEMMA3["rope_parameters"] = {
    "full_attention": {"rope_type": "default", "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
QWEN3 = plain("qwen3", 4096, 32, 40960, 1000000, head_dim=128, rope_scaling=None)
HUNYUAN = plain("hunyuan_v1_dense", 64, 4, 32768, rope_scaling={"type": "dynamic", "alpha": 1e3, "factor": 1.0})
DEEPSEEK_YARN = yarn(40, mscale=1.0, mscale_all_dim=1.0, type="yarn")
DEEPSEEK_V3 = plain("deepseek_v3", 7168, 128, 163840, 10000, qk_rope_head_dim=64, rope_scaling=DEEPSEEK_YARN)
MINISTRAL3 = {"model_type": "ministral3", "head_dim": 128, "max_position_embeddings": 262144}
MINISTRAL3["rope_parameters"] = {
    "rope_type": "yarn",
    "rope_theta": 1000000.0,
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}


def in_v5(config: Mapping[str, Any], **parameters: Any) -> dict[str, Any]:
    """The configuration of a plain model as transformers 5 writes it: theta, and these fields, in rope_parameters."""
    rope = {"rope_type": "default", "rope_theta": config["rope_theta"], **parameters}
    return {key: value for key, value in config.items() if key != "rope_theta"} | {"rope_parameters": rope}


def write_checkpoint(
    folder: Path, config: Mapping[str, Any] = CONFIG, files: Mapping[str, str | bytes] | None = None
) -> Path:
    """Writes a folder with this configuration and these other files, and returns it."""
    return write_files(folder, {"config.json": json.dumps(config)} | dict(files or {}))


def write_files(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    """Writes files with these contents below a folder, which need not be there, and returns it."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def read(path: Path) -> dict[str, Any]:
    """Reads a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def edit(folder: Path, name: str = "config.json", **changes: Any) -> None:
    """Sets keys of a JSON file; None removes one."""
    path = folder / name
    value = (read(path) if path.exists() else {}) | changes
    path.write_text(json.dumps({key: item for key, item in value.items() if item is not None}), encoding="utf-8")


def edit_rope(folder: Path, **changes: Any) -> None:
    """Sets fields of the scaling in the keys of both transformers 4 and 5."""
    config = read(folder / "config.json")
    edit(folder, **{key: {**config[key], **changes} for key in ("rope_parameters", "rope_scaling")})


def as_cached(folder: Path, repository: Path, commit: str = "abc") -> Path:
    """A checkpoint as the Hub's cache keeps it: relative links to blobs named by their hash; returns the snapshot."""
    snapshot, blobs = repository / "snapshots" / commit, repository / "blobs"
    blobs.mkdir(parents=True)
    for path in (path for path in sorted(folder.rglob("*")) if path.is_file()):
        blob = blobs / hashlib.sha256(path.read_bytes() + path.name.encode()).hexdigest()
        link = snapshot / path.relative_to(folder)
        link.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(path.read_bytes())
        link.symlink_to(os.path.relpath(blob, link.parent))
    return snapshot
