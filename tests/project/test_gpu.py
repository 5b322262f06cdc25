"""What an accelerator is asked, on a processor and with tiny models."""

import json

import pytest
from launching import TOOLS, environment

# Libraries that a machine with an accelerator may lack.
ABSENT = ("accelerate", "click", "datasets", "gguf", "matplotlib", "pandas", "peft", "pyarrow")

PARTS = "environment patch kernels equality resuming llama qwen longest sliding memory eval search recommend".split()


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
    assert found["resuming"]["stopped"] == "after 3 passes"
    assert max(found["equality"][f"largest difference {to}"] for to in ("to the naive loop", "in chunks")) < 1e-5
    assert set(PARTS) <= found["seconds"].keys() and "failed" not in found
    page = (tmp_path / "gpu.md").read_text()
    said = ("18 of 18; decoding 6 of 6", "two runs, stopped and continued |", "Mixtral; several cards.\n", "whole: - |")
    assert all(each in page for each in said) and page.count(" | - | - |\n") == 3 and page in done.stdout
