"""Builds models in mlx-lm, without weights, and prints the tables of their rotary layers; runs beside mlx-lm.

Reads one JSON object ``{"config": ..., "length": ...}`` per line, and answers each with one line: the tables by the
path of the module, or ``{"error": ...}``.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import mlx.nn as nn
from mlx_lm.utils import _get_classes

_PUBLISHED = {
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "moe_layer_freq": 1,
    "norm_topk_prob": True,
    "rope_traditional": False,
    "tie_word_embeddings": False,
    "mlp_bias": False,
    "post_norm": False,
    "qk_norm": True,
    "group_norm_size": 1,
    "num_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "is_moe_layer": [False] * 8,
    "attention_method": "MLA",
    "zero_expert_type": "identity",
    "mla_scale_q_lora": True,
    "mla_scale_kv_lora": True,
    "shared_intermediate_size": 16,
    "first_k_dense_replace": 1,
    "intermediate_size": 48,
    "block_dim": 64,
}
"""What files on the Hub state, and transformers 5 does not save."""


def _derived(section: dict[str, Any]) -> dict[str, float]:
    """Returns sizes that files on the Hub state, and transformers 5 derives."""
    head = section.get("head_dim") or section["hidden_size"] // section["num_attention_heads"]
    parameters = section.get("rope_parameters") or {}
    share = section.get("partial_rotary_factor") or parameters.get("partial_rotary_factor") or 1
    return {"head_dim": head, "rotary_dim": int(head * share), "partial_rotary_factor": share}


def _patterned(config: dict[str, Any]) -> dict[str, Any]:
    """Returns a configuration with the layers' pattern of layers as files on the Hub state it."""
    if isinstance(config.get("text_config"), dict):
        return {**config, "text_config": _patterned(config["text_config"])}
    kinds, model_type = config.get("layer_types"), config["model_type"]
    if model_type == "granitemoehybrid":
        return {**config, "layer_types": ["mamba", "attention"]}
    if "per_layer_config" in config:
        config = {**config, "global_head_dim": 64}
    if kinds != ["sliding_attention", "full_attention"]:
        return config
    return {**config, "sliding_window_pattern": "LG" if "exaone" in model_type else 2}


def _table(module: nn.Module, length: int) -> dict[str, Any]:
    halves = not getattr(module, "traditional", type(module).__name__.startswith("DeepseekV2"))
    freqs = getattr(module, "_freqs", None)
    if freqs is None:
        base = module.base
        if type(module).__name__ == "DynamicNTKScalingRoPE":
            stretch = module.factor * length / module.max_position_embeddings - (module.factor - 1)
            base = base * stretch ** (module.dims / (module.dims - 2))
        scale = getattr(module, "scale", 1.0)
        found = [scale * base ** (-2 * i / module.dims) for i in range(module.dims // 2)]
    else:
        found = [0.0 if f == float("inf") else 1 / f for f in freqs.tolist()]
    return {"halves": halves, "inv_freq": found}


def _tables(config: dict[str, Any], length: int) -> dict[str, Any]:
    model_class, args_class = _get_classes(config)
    missing: dict[str, Any] = {}
    config = _patterned(config)
    for _ in range(20):
        try:
            inner = config.get("text_config")
            within = {"text_config": {**missing, **inner}} if isinstance(inner, dict) else {}
            model = model_class(args_class.from_dict({**missing, **config, **within}))
            break
        except TypeError as error:
            names = re.findall(r"'(\w+)'", str(error)) if "required positional" in str(error) else []
            known = _PUBLISHED | _derived(inner or config)
            if not names or not set(names) <= known.keys() - missing.keys():
                raise
            missing |= {name: known[name] for name in names}
    else:
        raise TypeError("too many missing fields")
    found = {}
    for path, module in model.named_modules():
        is_rotary = hasattr(module, "_freqs") or (isinstance(module, nn.RoPE) or hasattr(module, "base"))
        if is_rotary and "vision" not in path and "indexer" not in path:
            found[path] = _table(module, length)
    return {"module": model_class.__module__.rpartition(".")[2], "tables": found}


def main() -> None:
    answers, sys.stdout = sys.stdout, sys.stderr  # some models print
    for line in sys.stdin:
        case = json.loads(line)
        try:
            answer = _tables(case["config"], case["length"])
        except (Exception, SystemExit) as error:  # any error of any model's code is the answer
            answer = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
