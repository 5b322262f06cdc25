"""The counter of what a command enters."""

import os
from pathlib import Path
from traceback import walk_stack

import pytest
import torch
import tracing

from ropescale.cli.main import main
from ropescale.evals.reference import CHECKPOINT

PATCH = ["patch", str(CHECKPOINT), "-o", "out", "--schedule", "yarn:factor=4"]
EVAL = ["eval", str(CHECKPOINT), "--data", "text.txt", "--lengths", "64,512", "--schedule", "yarn", "-o", "out"]


COMMANDS = [
    (PATCH, 38, {"patch.py", "patching.py", "plan.py", "by_parts.py", "folders.py", "record.py"}),
    pytest.param(EVAL, 71, {"eval.py", "runner.py", "scorer.py", "paired.py", "store.py"}, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("words", "most", "some"), COMMANDS)
def test_a_command_enters_few_files(words, most, some, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("The keeper wrote it down. " * 200)
    found = tracing.entered(lambda: main(words))
    assert list(Path("out").glob("r*.json"))
    assert some <= {os.path.basename(name) for name in found} and len(found) <= most


@pytest.mark.slow
def test_few_frames_of_ours_lie_between_main_and_the_head(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("The keeper wrote it down. " * 200)
    counts, forward = [], torch.nn.Linear.forward

    def counting(layer, states):
        if layer.out_features == 2048:  # the head
            counts.append(sum(tracing.is_ours(frame.f_code) for frame, _ in walk_stack(None)))
        return forward(layer, states)

    monkeypatch.setattr(torch.nn.Linear, "forward", counting)
    main(EVAL)
    assert counts and max(counts) <= 12
