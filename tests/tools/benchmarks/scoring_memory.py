"""The peak memory of scoring one window, beside its estimate, for the families whose layers differ most.

``python scoring_memory.py``, or ``bench peaks``: two layers with random weights, on a processor, each family in a
process of its own. Linux only: the peak is the kernel's, above what the weights take and after a short window.
glibc would keep freed tensors below 32 MB for itself, so it is told to give every large block back at once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama": ("llama", {"intermediate_size": 2048, "num_attention_heads": 8, "num_key_value_heads": 2}),
    "Qwen3": ("qwen3", {"intermediate_size": 1536, "num_attention_heads": 8, "num_key_value_heads": 4,
                        "head_dim": 128}),
    "Gemma 3 (sliding)": ("gemma3_text", {"intermediate_size": 3072, "num_attention_heads": 4, "num_key_value_heads": 1,
                                          "head_dim": 128, "sliding_window": 512,
                                          "layer_types": ["sliding_attention", "full_attention"]}),
    "Mixtral": ("mixtral", {"intermediate_size": 1792, "num_attention_heads": 8, "num_key_value_heads": 2,
                            "num_local_experts": 8, "num_experts_per_tok": 2}),
    "DeepSeek-V3": ("deepseek_v3", {"intermediate_size": 1280, "moe_intermediate_size": 256, "num_attention_heads": 8,
                                    "num_key_value_heads": 8, "n_routed_experts": 16, "num_experts_per_tok": 8,
                                    "n_group": 4, "topk_group": 2, "kv_lora_rank": 256, "q_lora_rank": 384,
                                    "qk_rope_head_dim": 32, "v_head_dim": 64, "qk_nope_head_dim": 64,
                                    "first_k_dense_replace": 1}),
    "GPT-NeoX": ("gpt_neox", {"intermediate_size": 2048, "num_attention_heads": 8}),
}  # fmt: skip
"""The shapes of layers, 512 wide, in the proportions of Llama 3, Qwen3 0.6B, Gemma 3 1B, Mixtral, DeepSeek-V3 and
Pythia."""

PROMPT = "MALLOC_MMAP_THRESHOLD_"
"""glibc's variable: blocks of so many bytes are given back when they are freed."""


def status(field: str) -> int:
    """A field of this process's status, in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(field))


def measure(name: str, length: int) -> None:
    """Prints the name of a family, the estimate and the peak."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from ropescale.evals.scoring.scorer import Scorer

    kind, shape = CASES[name]
    config = AutoConfig.for_model(
        kind, vocab_size=1000, hidden_size=512, num_hidden_layers=2, max_position_embeddings=131072, **shape
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    scorer, ids = Scorer(model, logits_bytes=2**20), torch.randint(1000, (1, length))
    with torch.inference_mode():
        scorer.check(ids[0])
        scorer.score(ids[:, :600])
        estimate = scorer.estimate(length).whole(length, length)  # and whether tiles change numbers
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
        before = status("VmRSS")
        scorer.score(ids)
    peak = status("VmHWM") - before
    print(json.dumps([name, estimate, peak]), flush=True)


def main() -> None:
    if len(sys.argv) > 1:
        warnings.simplefilter("ignore")
        measure(sys.argv[1], 10240)
        return
    for name in CASES:
        subprocess.run([sys.executable, __file__, name], env=os.environ | {PROMPT: "65536"}, check=True)


if __name__ == "__main__":
    main()
