"""The memory of a step: at most twice that of a forward pass, on two layers of a 1B model's width."""

import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the kernel's peak is Linux's"),
]

SCRIPT = """
import sys
sys.path.insert(0, {folder!r})
import torch
from searching_memory import build, measure
torch.set_num_threads(1)
scored, _, step = measure(build(vocabulary=4096), 4096, plain=False)
print(step / scored)
"""


def test_a_step_takes_at_most_twice_a_forwards_memory(python, repository):
    """The head's loss goes in blocks, so a small vocabulary takes the same memory beside the layers, and less time."""
    script = SCRIPT.format(folder=str(repository / "tests" / "tools" / "benchmarks"))
    done = python("-c", script, env={"MALLOC_MMAP_THRESHOLD_": "65536"})  # so that freed tensors are given back
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) <= 2.0
    assert sys.platform == "linux"
