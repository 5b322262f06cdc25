"""The counter of what a command enters."""

from __future__ import annotations

import os
from pathlib import Path

import tracing

from ropescale.cli.main import main
from ropescale.evals.reference import CHECKPOINT


def test_a_patch_enters_few_files(model, capsys):
    found = tracing.entered(lambda: main(["patch", "model", "-o", "out", "--schedule", "yarn:factor=4"]))
    assert (model.parent / "out" / "ropescale.json").exists()
    names = {os.path.basename(name) for name in found}
    assert {"patch.py", "patching.py", "plan.py", "by_parts.py", "folders.py", "record.py"} <= names
    assert len(found) <= 40


def test_an_eval_enters_few_files(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("The keeper wrote it down. " * 200)
    asked = ["eval", str(CHECKPOINT), "--data", "text.txt", "--lengths", "64,512", "--schedule", "yarn", "-o", "out"]
    found = tracing.entered(lambda: main(asked))
    assert Path("out/results.json").exists()
    names = {os.path.basename(name) for name in found}
    assert {"eval.py", "runner.py", "scorer.py", "paired.py", "result.py", "store.py"} <= names
    assert len(found) <= 80
