"""What an accelerator is asked, on a processor and with tiny models."""

import json

import pytest
from launching import TOOLS, environment

# Libraries that a machine with an accelerator may lack.
ABSENT = ("accelerate", "click", "datasets", "gguf", "matplotlib", "pandas", "peft", "pyarrow")

PARTS = {"environment", "patch", "kernels", "equality", "resuming", "llama", "qwen", "sliding", "memory", "eval"}
PARTS |= {"longest", "search", "recommend"}


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
    equal = {"two runs equal": True, "stopped and continued equal": True}
    assert found["resuming"] == equal | {"stopped": "after 3 passes"}
    assert max(found["equality"][f"largest difference {to}"] for to in ("to the naive loop", "in chunks")) < 1e-5
    assert {name for name in PARTS if name in found["seconds"]} == PARTS and "failed" not in found
    page = (tmp_path / "gpu.md").read_text()
    assert "18 of 18; decoding 6 of 6" in page and "naive loop, batches of 1 and 2, two runs, stopped and con" in page
    assert page.count(" | - | - |\n") == 3 and "whole: - |" in page and "nan" not in page and page in done.stdout
    assert "Not measured: `search` beyond 32,768; Mixtral; several cards.\n" in page  # all else was
