"""An option that has no effect is an error that says so, in the command line and in Python."""

import json
import shlex

import pytest
from configurations import GEMMA3, LLAMA, LLAMA31, write_checkpoint

import ropescale
from ropescale.errors import ScheduleError

BY_TYPE = json.dumps({"full_attention": "yarn:factor=2", "sliding_attention": "linear:factor=2"})
IDLE = [
    (LLAMA, "--schedule yarn:factor=2 --replace-scaling", "this model has no scaling by its makers to replace"),
    (LLAMA, "--schedule yarn:factor=2 --on-top", "this model has no scaling to build on"),
    (LLAMA, "--schedule yarn:factor=2 --freeze-at 8k", "the schedule has the same table at every length"),
    (LLAMA31, "--schedule as-is --factor 2", "as-is keeps the frequencies"),
    (LLAMA31, "--schedule as-is --replace-scaling", "as-is keeps the frequencies"),
    (LLAMA31, "--schedule as-is --layers all", "as-is keeps the frequencies"),
    (LLAMA31, "--schedule as-is --layers full", "as-is keeps the frequencies"),
    (LLAMA31, "--schedule as-is --set beta_fast=16", "as-is keeps the frequencies"),
    (GEMMA3, f"--schedule '{BY_TYPE}' --layers all", "the schedule names its layer types"),
]


@pytest.mark.parametrize(("config", "options", "why"), IDLE)
def test_an_option_without_effect_is_an_error_that_says_so(config, options, why, tmp_path, refused):
    model = write_checkpoint(tmp_path / "M", config)
    for command in ("patch", "inspect", "export --for vllm", "patch --dry-run"):
        out = ["-o", tmp_path / "OUT"] if command == "patch" else []
        assert f"has no effect: {why}" in refused(*command.split(), model, *out, *shlex.split(options))
    said = refused("patch", model, "--schedule", "ntk", "--in-place", "--link", "auto")
    assert "link applies to an output folder" in said
    with pytest.raises(ScheduleError, match="target_length has no effect: as-is keeps the frequencies"):
        ropescale.frequencies(model, "as-is", target_length="64k")
    if "--replace-scaling" in options:
        with pytest.raises(ScheduleError, match="replace_scaling has no effect"):
            ropescale.frequencies(model, shlex.split(options)[1], replace_scaling=True)
