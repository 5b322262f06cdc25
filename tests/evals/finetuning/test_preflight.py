"""Faults of a ``ropescale finetune`` are named before torch is imported, and before anything is made."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import training
from configurations import write_files

from ropescale.errors import ConfigError, DataError
from ropescale.evals.finetuning.job import TrainingJob
from ropescale.evals.finetuning.preflight import Preflight
from ropescale.request import Request

WRONG = [
    (["--schedule", "yran"], "no schedule named 'yran'; did you mean 'yarn'?"),
    (["--schedule", "yarn"], "yarn needs a factor"),
    (["--schedule", "dynamic-yarn"], "freeze it at a length with --freeze-at N"),
    (["--pose", "256"], "--pose 256 is not a number of positions between 2 and the 256 that are reached"),
    (["--mixed", "1k"], "--mixed 1024 is not a number of positions between 2 and the 256 that are reached"),
    (["--mixed", "32", "--pose", "32"], "--mixed and --pose are two ways"),
    (["--rank", "4"], "--rank is given, and --lora is not"),
    (["--learning-rate", "0"], "--learning-rate is 0.0"),
    (["--batch", "3", "--micro-batch", "2"], "--batch 3 windows cannot be shared out over 1 process"),
    (["--device", "tpu"], "--device tpu cannot be chosen"),
    (["--eval-every", "2"], "--eval-every is given, and no --eval-lengths"),
    (["--eval-windows", "1"], "--eval-windows is given, and no --eval-lengths"),
    (["--eval-lengths", "64"], "--eval-data and --eval-lengths belong together"),
    (["--eval-data", "SRC", "--eval-lengths", "64", "--eval-windows", "two"], "--eval-windows 'two' is neither"),
    (["-o", "TAKEN"], "exists already"),
    (["-o", "HELD"], "something else is there"),
    (["--text-field", "body"], "--text-field is given"),
]

SCRIPT = """
import contextlib, io, json, sys
from ropescale.cli.main import main
said = []
for words in json.load(open(sys.argv[1])):
    with contextlib.redirect_stderr(io.StringIO()) as err:
        said.append([main(words), err.getvalue()])
print(json.dumps([said, [name for name in ("torch", "transformers") if name in sys.modules]]))
"""


def test_what_is_wrong_with_an_option_is_said_without_torch(tmp_path, python):
    source, data = training.checkpoint(tmp_path / "model"), tmp_path / "text.txt"
    data.write_text("some text")
    (tmp_path / "taken").mkdir()
    write_files(tmp_path / "held-training", {"thesis.txt": "mine"})
    places = {"SRC": str(data), "TAKEN": str(tmp_path / "taken"), "HELD": str(tmp_path / "held")}
    usual = {"--schedule": "yarn:factor=4", "--steps": "2", "--batch": "2", "-o": str(tmp_path / "out")}
    asked = [
        ["finetune", str(source), "--data", str(data)]
        + [word for name, value in usual.items() if name not in more for word in (name, value)]
        + [places.get(word, word) for word in more]
        for more, _ in WRONG
    ]
    before = sorted(tmp_path.rglob("*"))
    (tmp_path / "asked.json").write_text(json.dumps(asked))
    done = python("-c", SCRIPT, str(tmp_path / "asked.json"))
    said, imported = json.loads(done.stdout)
    for (code, error), (more, wanted) in zip(said, WRONG, strict=True):
        assert code == 2 and error.startswith("error: ") and error.count("\n") == 1 and wanted in error, (more, error)
    assert not imported
    assert sorted(tmp_path.rglob("*")) == sorted([*before, tmp_path / "asked.json"])


def asked(folder: Path, **job) -> Preflight:
    return Preflight("M", folder, False, Request("yarn:factor=4"), TrainingJob(**job), folder.with_name("out"))


def test_windows_shorter_or_longer_than_the_schedule_are_remarked_on(tmp_path):
    source = training.checkpoint(tmp_path / "model")  # trained at 64
    assert asked(source, steps=30).remarks() == []
    [short] = asked(source, steps=30, length=128).remarks()
    assert short == "windows reach 128 positions, and the schedule is for 256: nothing beyond 128 is trained"
    [long] = asked(source, steps=30, length=512).remarks()
    assert long == "windows reach 512 positions, beyond the 256 that the schedule is for"
    [rate] = asked(source, steps=11).remarks()  # the eleventh has 1/20 + 10/20 x 19/20 = 0.525
    assert "the rate ends at 52% of its peak" in rate


def test_an_adapter_without_peft_is_refused_before_anything_is_read(tmp_path, monkeypatch):
    source = training.checkpoint(tmp_path / "model")
    asked(source, steps=30, lora=True).check()
    monkeypatch.setattr("ropescale.evals.finetuning.preflight.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"peft is not installed; pip install 'ropescale\[adapters\]'"):
        asked(source, steps=30, lora=True).check()


def test_lengths_that_cannot_be_measured_are_refused_with_the_job():
    with pytest.raises(DataError, match="length 1 leaves no token to score"):
        TrainingJob(2, eval_lengths=[1])


def test_no_torch_is_needed_to_import_the_package(python):
    done = python("-c", "import sys, ropescale.evals.training; print('torch' in sys.modules)")
    assert isinstance(done, subprocess.CompletedProcess) and done.stdout.split() == ["False"]
