"""The memory of a step beside its estimate, on two layers of a 1B model's width, and the estimate for an 8B."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from ropescale.evals.searching.learner import Learner

SCRIPT = """
import sys, torch
sys.path.insert(0, {folder!r})
from searching_memory import build, measure
torch.set_num_threads(1)
_, _, step, estimated = measure(build(vocabulary=4096), 4096, plain=False)
print(step / estimated)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the kernel's peak is Linux's")
def test_a_step_takes_the_memory_that_is_said(python, repository):
    """The head's loss goes in blocks, so a small vocabulary takes the same memory beside the layers, and less time."""
    script = SCRIPT.format(folder=str(repository / "tests" / "tools" / "benchmarks"))
    done = python("-c", script, env={"MALLOC_MMAP_THRESHOLD_": "65536"})  # so that freed tensors are given back
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(1, abs=0.2)


def test_an_8b_learns_from_32k_in_40_gb():
    """Llama 3.1 8B in bfloat16: its weights, the inputs of 32 blocks, and one block's backward pass."""
    sizes = {"hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32, "vocab_size": 128_256}
    config = LlamaConfig(**sizes, num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=8192)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    weights = sum(each.numel() * each.element_size() for each in model.parameters())
    learner = Learner(model)
    assert learner.logits_bytes == 2**30 and 30e9 < weights + learner.step_bytes(32_768) < 40e9
