"""Tiny random real models of several architectures, built in milliseconds from a seed, and what a patch may touch."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import torch
from tiny import SMALL, VOCABULARY
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

TRAINED = 64
"""max_position_embeddings of every model here, in tokens, but for phi3 (4096)."""

_COMMON = SMALL | {"max_position_embeddings": TRAINED, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
_MIXED = {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]}
_EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}

SHAPES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "gemma2": {"head_dim": 8, "sliding_window": 16},  # one table over mixed layers, logit softcap
    "gemma3_text": {"head_dim": 8, **_MIXED},  # one table per layer type
    "olmo3": _MIXED,  # the same, both with theta 500000
    "gpt_neox": {"rotary_pct": 0.5, "num_key_value_heads": None},  # partial rotary: 2 pairs of 4
    "phi3": {"max_position_embeddings": 4096},  # accepts no rope type but longrope
    "deepseek_v3": {  # MLA: a slice of its own rotates, in interleaved pairs
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
        "num_key_value_heads": 4,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 16,
    },
    "gpt_oss": {  # half-width cos and sin, attention sinks
        "head_dim": 8,
        "sliding_window": 16,
        "rope_parameters": {"rope_type": "default", "rope_theta": 150000.0},
        **_EXPERTS,
    },
    "glm4": {"head_dim": 8},  # partial rotary in interleaved pairs
}


def build(model_type: str = "llama", seed: int = 0, **changes: Any) -> Any:
    """A random model of this type, with logits that are far from flat."""
    torch.manual_seed(seed)
    config = AutoConfig.for_model(model_type, **(_COMMON | SHAPES.get(model_type, {}) | changes))
    model = AutoModelForCausalLM.from_config(config).eval()
    config.architectures, config.dtype = [type(model).__name__], torch.float32  # as save_pretrained would add them
    return model


def pairs(model: Any) -> int:
    """How many pairs of coordinates of a head rotate."""
    return len(tables(model)[0][1])


def document(length: int, seed: int = 0) -> torch.Tensor:
    """Random ids, int64 [1, length]."""
    return torch.randint(VOCABULARY, (1, length), generator=torch.Generator().manual_seed(seed))


def logits(model: Any, length: int = 100, seed: int = 0) -> torch.Tensor:
    """What the model says about :func:`document`, [length, vocabulary]."""
    with torch.no_grad():
        return model(input_ids=document(length, seed), use_cache=False).logits[0]


def tables(model: nn.Module) -> list[tuple[str, torch.Tensor, float]]:
    """Name, frequencies and attention scale of every live table, in order."""
    return [
        (f"{name}.{key}", buffer, float(getattr(module, key.replace("inv_freq", "attention_scaling"))))
        for name, module in model.named_modules()
        for key, buffer in sorted(module._buffers.items())
        if buffer is not None and key.endswith("inv_freq") and "original" not in key
    ]


def reloaded(model: Any, folder: Path) -> Any:
    """The model that stock transformers reads back from what ``save_pretrained`` writes."""
    model.save_pretrained(folder)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=model.dtype).eval()


def stock_from(config: dict[str, Any], folder: Path) -> Any:
    """A stock model, weights random, of a ``config.json`` with this content."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    logging.getLogger("transformers").setLevel(logging.ERROR)
    return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder)).eval()


def snapshot(model: Any) -> dict[str, Any]:
    """Everything that a patch touches, or could: every attribute, buffer, hook and configuration entry, copied."""
    found: dict[str, Any] = {"config": model.config.to_dict(), "config attributes": sorted(model.config.__dict__)}
    for name, module in model.named_modules():
        plain = {k: v for k, v in module.__dict__.items() if not k.startswith("_") and _is_value(v)}
        found[f"{name} plain"] = plain
        found[f"{name} names"] = sorted(module.__dict__)
        found[f"{name} hooks"] = len(module._forward_pre_hooks) + len(module._forward_hooks)
        found |= {f"{name}.{k}": b.clone() for k, b in module._buffers.items() if b is not None}
    return found


def _is_value(value: Any) -> bool:
    return isinstance(value, (int, float, str, bool, dict, list, torch.Tensor, type(None)))


def assert_same(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Bit for bit, with the same dtypes and nothing left over."""
    assert before.keys() == after.keys()
    for key, value in before.items():
        if isinstance(value, torch.Tensor):
            assert value.dtype == after[key].dtype and torch.equal(value, after[key]), key
        else:
            assert value == after[key], key
