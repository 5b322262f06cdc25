"""The peak memory of a step of a search, beside that of a forward pass: two layers of a 1B model's width.

``python searching_memory.py 4096 8192``: for each length, the peak above what the weights take, in MB,
of the scorer's forward (its head in blocks, no logits kept), of transformers' own (all logits, left out beyond 8,192),
of a step with its gradient, and the estimate of that step. Linux only: the peak is the kernel's, reset before each
measurement. glibc would keep freed tensors below 32 MB for itself, so it is told to give every large block back at
once.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from ropescale.evals.searching.learner import Learner, LiveTables, gradient
from ropescale.evals.searching.options import plan_of_start
from ropescale.evals.searching.search_space import space_of
from ropescale.evals.searching.windows import WeightedWindow
from ropescale.models.rotary_modules import evaluating


def build(vocabulary: int = 128_256) -> LlamaForCausalLM:
    """Two layers of Llama 3.2 1B, with random weights."""
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=2,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=64,
        max_position_embeddings=2048,
        rope_parameters={"rope_type": "default", "rope_theta": 500_000.0},
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    return LlamaForCausalLM(config).eval()


def status(field: str) -> float:
    """A field of this process's status, in MB."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def peak(what: Callable[[], object]) -> float:
    """The peak above what is there before, in MB."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    before = status("VmRSS")
    what()
    return status("VmHWM") - before


def measure(model: LlamaForCausalLM, length: int, plain: bool = True) -> tuple[float, float, float, float]:
    """The peaks of the scorer's forward, of transformers' own, and of a step; and the estimate of the last, in MB."""
    target = max(length, 4096)
    plan = plan_of_start(model.config.to_dict(), target, {})
    live, space, learner = LiveTables(model, plan), space_of(plan, target), Learner(model)
    ids = torch.randint(1000, (length,), generator=torch.Generator().manual_seed(0))
    window = WeightedWindow(ids, torch.full((length - 1,), 1 / (length - 1), dtype=torch.float64))

    def whole() -> None:
        with torch.inference_mode():
            model(input_ids=ids[None], use_cache=False)

    with live.patched(), evaluating(model):
        with torch.inference_mode():
            learner.check(ids)
        learner.nll_of(ids[:256])
        scored = peak(lambda: learner.nll_of(ids))
        own = peak(whole) if plain else float("nan")
        step = peak(lambda: gradient(learner, live, space, space.start, window))
    return scored, own, step, learner.step_bytes(length) / 2**20


PROMPT = "MALLOC_MMAP_THRESHOLD_"
"""glibc's variable: blocks of so many bytes are given back when they are freed."""

if __name__ == "__main__":
    if PROMPT not in os.environ:
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | {PROMPT: "65536"})
    torch.set_num_threads(1)
    model = build()
    print("| length | scorer's forward | plain forward | step | estimated | step / scorer's | step / estimated |")
    for each in map(int, sys.argv[1:]):
        scored, own, step, estimated = measure(model, each, plain=each <= 8192)
        sizes = f"{scored:,.0f} | {own:,.0f} | {step:,.0f} | {estimated:,.0f}"
        print(
            f"| {each:,} | {sizes} | {step / scored:.2f} | {step / estimated:.2f} |",
            flush=True,
        )
