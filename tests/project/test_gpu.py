"""What an accelerator is asked, on a processor and with tiny models."""

from __future__ import annotations

import json

import pytest
from launching import TOOLS, environment

ABSENT = ("click", "datasets", "pyarrow", "matplotlib")
"""Libraries that a machine with an accelerator may lack."""


@pytest.mark.slow
def test_every_part_runs_on_a_processor_where_only_torch_and_transformers_are_installed(python, tmp_path):
    words = ["gpu", "--tiny", "--out", str(tmp_path), "--device", "cpu"]
    script = f"""
import runpy, sys
sys.modules.update(dict.fromkeys({ABSENT!r}))  # None: importing it is an error
sys.argv = {words!r}
runpy.run_module("gpu", run_name="__main__")
"""
    done = python("-c", script, env=environment(TOOLS))
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert found["resuming"] == {
        "two runs equal": True,
        "stopped": "after 3 batches",
        "stopped and continued equal": True,
    }
    assert max(found["equality"][f"largest difference {to}"] for to in ("to the naive loop", "in chunks")) < 1e-5
    assert found["Llama-3.1-8B"]["largest difference"] < 1e-5 and "failed" not in found
    assert found["search"]["gradients"] > 0 and "recommend" in found
