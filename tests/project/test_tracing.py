"""The counter of what a command enters."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import tracing

from ropescale.cli.main import main
from ropescale.evals.reference import CHECKPOINT
from ropescale.lengths import parse_length
from ropescale.rope import Rope


def test_it_counts_the_functions_that_are_entered_in_every_thread_and_no_others():
    def act():
        thread = threading.Thread(target=lambda: parse_length("2k"))
        thread.start()
        thread.join()
        [rope.turns() for rope in [Rope(8, 10000.0, 64)]]

    found = {Path(name).name: functions for name, functions in tracing.entered(act).items()}
    assert found.keys() == {"lengths.py", "rope.py"}
    assert "parse_length" in found["lengths.py"] and "Rope.turns" in found["rope.py"]
    assert not any("<" in function.replace("<locals>", "") for each in found.values() for function in each)


def test_a_patch_enters_few_files(model, capsys):
    found = tracing.entered(lambda: main(["patch", "model", "-o", "out", "--schedule", "yarn:factor=4"]))
    assert (model.parent / "out" / "ropescale.json").exists()
    names = {os.path.basename(name) for name in found}
    assert {"patch.py", "patching.py", "plan.py", "yarn.py", "folders.py", "record.py"} <= names
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
