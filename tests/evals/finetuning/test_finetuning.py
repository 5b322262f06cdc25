"""``ropescale finetune``: a tiny training from the command line, killed and continued, full and with an adapter."""

from __future__ import annotations

import json
import logging
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import peft
import pytest
import tiny
import torch
import training
from configurations import write_files
from crashing import raising, tree
from launching import environment, launch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

import ropescale
from ropescale.cli.main import main
from ropescale.evals.finetuning.job import TrainingJob
from ropescale.evals.finetuning.recipes import recipe
from ropescale.evals.finetuning.running import Adaptation
from ropescale.evals.running.preparing import Checkpoint
from ropescale.request import Request

pytestmark = pytest.mark.usefixtures("no_plots", "one_thread")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint, text to train on and text to measure on."""
    folder = tmp_path_factory.mktemp("place")
    training.checkpoint(folder / "model")
    texts = [" ".join(str((number * 7919 + j * j) % 997) for j in range(300)) for number in range(6)]
    for name, count in (("data", 6), ("test", 3)):
        write_files(folder / name, {f"{number}.txt": text for number, text in enumerate(texts[:count])})
    return folder


USUAL = {
    "--schedule": "yarn:factor=4",
    "--steps": "6",
    "--batch": "2",
    "--learning-rate": "1e-2",
    "--warmup": "2",
    "--save-every": "2",
}


def words(place: Path, out: Path, *more: str) -> list[str]:
    """The command's words; a usual option that is given again is replaced."""
    usual = [word for name, value in USUAL.items() if name not in more for word in (name, value)]
    asked = ["--data", str(place / "data"), "-o", str(out)]
    return ["finetune", str(place / "model"), *asked, *usual, *more]


def finetune(place: Path, out: Path, *more: str) -> int:
    return main(words(place, out, *more))


@pytest.fixture
def alarms(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What Trainer warns of."""
    said: list[str] = []
    monkeypatch.setattr(logging.getLogger("transformers.trainer"), "warning", lambda text, *_: said.append(text))
    return said


def fail_at_the_end(place: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trains to the last step, and writes no result."""
    with monkeypatch.context() as patched:
        patched.setattr(Adaptation, "_finish", lambda *_: 1 / 0)
        assert finetune(place, out) == 1


def test_the_result_is_a_patched_checkpoint_that_has_learnt_the_text(place, tmp_path, ran):
    out, measured = tmp_path / "out", ["--eval-data", str(place / "test"), "--eval-lengths", "64,256", "--json"]
    printed, told = ran(*words(place, out, *measured))
    said = json.loads(printed)
    assert said["tokens"] == 6 * 2 * 256
    ppl = {(row["step"], row["length"]): row["ppl"] for row in said["rows"]}
    assert ppl.keys() == {(step, length) for step in (None, 0, 6) for length in (64, 256)}
    assert ppl[6, 256] < 0.1 * ppl[0, 256]
    texts = ropescale.evals.read_texts(place / "test")
    saved = ropescale.evals.perplexity(training.loaded(out), texts, "64,256", tokenizer=tiny.byte_tokenizer())
    assert [row.ppl for row in saved.rows] == [ppl[6, 64], ppl[6, 256]]
    assert ropescale.verify(out).intended == "all: yarn:factor=4"
    assert f"next:\n  ropescale verify {out}\n  ropescale eval {out} --data" in told
    assert sorted(os.listdir(tmp_path)) == ["out", "out-training"]
    assert sorted(os.listdir(tmp_path / "out-training")) == ["lock", "measured", "settings.json"]


def test_the_figures_before_and_after_are_named_paired_and_those_of_eval(place, tmp_path, ran):
    measured = ["--eval-data", str(place / "test"), "--eval-lengths", "64,256", "--eval-every", "3"]
    said = json.loads(ran(*words(place, tmp_path / "out", *measured, "--json"))[0])
    names = ["no schedule, before", "yarn x4, before", "yarn x4, after 3 steps", "yarn x4, after 6 steps"]
    assert list(dict.fromkeys(row["schedule"] for row in said["rows"])) == names
    texts, tokenizer = ropescale.evals.read_texts(place / "test"), tiny.byte_tokenizer()
    oracle = ropescale.evals.perplexity(
        training.loaded(place / "model"), texts, "64,256", ["yarn:factor=4"], tokenizer=tokenizer
    )
    assert [row["ppl"] for row in said["rows"][:4]] == [row.ppl for row in oracle.rows]
    ppl = {(row["schedule"], row["length"]): row["ppl"] for row in said["rows"]}
    assert [(row["baseline"], row["length"]) for row in said["paired"]] == [
        (names[1], 64), (names[1], 256), (names[0], 64), (names[0], 256)
    ]  # fmt: skip
    for row in said["paired"]:  # the same tokens, each with the same weight
        ratio = ppl[names[3], row["length"]] / ppl[row["baseline"], row["length"]]
        assert row["delta_nll"] == pytest.approx(math.log(ratio), abs=1e-9)
        assert row["low"] < row["delta_nll"] < row["high"]
    text = (tmp_path / "out-training" / "measured" / "step-000006" / "REPORT.md").read_text()
    assert names[3] in text and "as-is" not in text


def test_runs_that_are_not_named_are_told_apart_by_their_steps(place, tmp_path):
    texts = ropescale.evals.read_texts(place / "data")
    job = TrainingJob(2, recipe("yarn").with_changes(batch=2, warmup=1), eval_lengths=[64], eval_windows=1)
    asked = Checkpoint(str(place / "model")), Request("yarn:factor=4"), job, texts, texts
    outcome = Adaptation(*asked, tmp_path / "out").run()
    run = ropescale.evals.Result.load(tmp_path / "out-training" / "measured" / "step-000002")
    last = outcome.to_dict()["rows"][-1]
    assert run.schedules == ["as-is"] and (last["step"], last["length"], last["ppl"]) == (2, 64, run.rows[0].ppl)
    assert outcome.stages == {"no schedule, before": None, "before": 0, "after 2 steps": 2}
    assert "| after 2 steps" in outcome.to_markdown()


def test_measuring_on_what_was_trained_on_is_said_and_on_other_text_is_not(place, tmp_path, ran):
    (tmp_path / "other.txt").write_text(" ".join(f"{j * j * 31 % 1009:x}" for j in range(300)))
    for data, share in ((place / "data", 1.0), (tmp_path / "other.txt", 0.0)):
        measured = ["--eval-data", str(data), "--eval-lengths", "256", "--steps", "1", "--json"]
        out, err = ran(*words(place, tmp_path / f"out-{share}", *measured))
        assert json.loads(out)["trained_on"] == share
        warned = "warning: 100% of the measured text is in the training text, word for word" in err
        assert warned == bool(share) and ("give other texts as --eval-data" in err) == bool(share)


def test_tied_embeddings_stay_tied_and_raise_no_alarm_on_the_way(place, tmp_path, monkeypatch, alarms):
    """A checkpoint of tied weights holds them once; that the head is not in it is no news when it is continued."""
    source = training.checkpoint(tmp_path / "tied", tie_word_embeddings=True)
    for adapted in (["--lora"], []):
        asked = words(place, tmp_path / f"out{len(adapted)}", *adapted, "--length", "64")
        asked[1] = str(source)
        with training.killed_at(3, monkeypatch):
            main(asked)
        assert main(asked) == 0
    assert not [text for text in alarms if "missing keys" in text]
    stock = training.loaded(tmp_path / "out0")
    assert stock.lm_head.weight is stock.model.embed_tokens.weight
    before = training.weights(source)["model.embed_tokens.weight"]
    assert not torch.equal(stock.lm_head.weight, before)
    adapter = peft.AutoPeftModelForCausalLM.from_pretrained(tmp_path / "out1").merge_and_unload()
    embeddings, head = adapter.get_input_embeddings().weight, adapter.get_output_embeddings().weight
    assert torch.equal(embeddings, head) and not torch.equal(embeddings, before)


def test_weights_that_a_checkpoint_really_lacks_are_still_said(place, tmp_path, monkeypatch, alarms):
    with training.killed_at(3, monkeypatch):
        finetune(place, tmp_path / "out", "--length", "64")
    file = tmp_path / "out-training" / "checkpoint-2" / "model.safetensors"
    save_file({k: v for k, v in load_file(file).items() if k != "model.norm.weight"}, file, {"format": "pt"})
    assert finetune(place, tmp_path / "out", "--length", "64") == 0
    assert any("missing keys" in text and "model.norm.weight" in text for text in alarms)


def test_an_adapter_is_trained_with_norms_and_embeddings_and_loads_in_stock_peft(place, tmp_path):
    assert finetune(place, tmp_path / "out", "--lora", "--rank", "2") == 0
    names = set(training.weights(tmp_path / "out"))
    assert any("embed_tokens" in name for name in names) and sum("norm" in name for name in names) == 5
    assert sum("lora_A" in name for name in names) == 8
    stock = peft.AutoPeftModelForCausalLM.from_pretrained(tmp_path / "out")
    assert ropescale.verify(stock).intended == "all: yarn x4 of 64"


@pytest.mark.parametrize("options", [["--mixed", "64"], ["--pose", "64"], ["--bf16", "--checkpointing"]])
def test_other_windows_and_less_memory_train_too(place, tmp_path, options):
    assert finetune(place, tmp_path / "out", *options) == 0
    assert not training.same(tmp_path / "out", place / "model")


@pytest.mark.parametrize(
    ("step", "adapted"), [(1, False), (3, False), (5, False), (3, True)], ids=["1", "3", "5", "3-lora"]
)
def test_a_training_that_was_stopped_goes_on_to_the_same_weights(place, tmp_path, monkeypatch, step, adapted):
    more = ["--length", "1k", "--batch", "4", *(["--lora"] if adapted else [])]  # the text twice over
    assert finetune(place, tmp_path / "whole", *more) == 0
    with training.killed_at(step, monkeypatch):
        finetune(place, tmp_path / "out", *more)
    assert not (tmp_path / "out").exists()
    assert finetune(place, tmp_path / "out", *more) == 0
    assert training.same(tmp_path / "out", tmp_path / "whole")


def test_half_a_checkpoint_is_not_continued_from(place, tmp_path, monkeypatch, ran):
    assert finetune(place, tmp_path / "whole") == 0
    fail_at_the_end(place, tmp_path / "out", monkeypatch)
    (tmp_path / "out-training" / "checkpoint-6" / "ropescale.json").unlink()
    _, said = ran(*words(place, tmp_path / "out"))
    assert "continuing from" in said and "checkpoint-4" in said
    assert training.same(tmp_path / "out", tmp_path / "whole")


@pytest.mark.parametrize(
    ("where", "error"),
    [
        ("safetensors.torch.save_file", SafetensorError("I/O error: No space left on device (os error 28)")),
        ("torch.save", RuntimeError("[enforce fail at inline_container.cc] . PytorchStreamWriter failed writing file")),
    ],
)
def test_a_full_disk_is_one_line_and_the_training_goes_on_later(place, tmp_path, monkeypatch, ran, where, error):
    with monkeypatch.context() as patched:
        patched.setattr(where, raising(error))
        patched.setattr("transformers.modeling_utils.safe_save_file", raising(error)) if "safe" in where else None
        _, err = ran(*words(place, tmp_path / "out", "--length", "64"), code=1)
    said = err.splitlines()[-1]
    assert said.startswith("error: ") and "out-training cannot be written: the disk is full; make room" in said
    assert finetune(place, tmp_path / "out", "--length", "64") == 0


def test_other_settings_do_not_continue_a_training(place, tmp_path, monkeypatch, refused):
    fail_at_the_end(place, tmp_path / "out", monkeypatch)
    said = refused(*words(place, tmp_path / "out", "--seed", "1"))
    assert "holds a training with other settings (seed 0 became 1)" in said
    assert finetune(place, tmp_path / "out", "--seed", "1", "--fresh") == 0


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--length", "100k"], "tokens in all, and a window has 102,400"),
        (["--eval-data", "TEST", "--eval-lengths", "64k"], "no document has"),
    ],
)
def test_what_cannot_be_is_one_line_and_nothing_is_written(place, tmp_path, refused, more, said):
    more = [str(place / "test") if word == "TEST" else word for word in more]
    assert said in refused(*words(place, tmp_path / "out", *more))
    assert not (tmp_path / "out").exists()


def test_nothing_of_the_users_is_lost(place, tmp_path, refused):
    write_files(tmp_path, {"out/thesis.txt": "mine", "free-training/thesis.txt": "mine"})
    before = tree(tmp_path)
    refused(*words(place, tmp_path / "out"))
    assert "something else is there" in refused(*words(place, tmp_path / "free"))
    unscheduled = ["--data", place / "data", "--steps", "1", "-o", tmp_path / "no"]
    assert "carries no schedule" in refused("finetune", place / "model", *unscheduled)
    assert tree(tmp_path) == before


def command(place: Path, out: Path) -> list[str]:
    return [sys.executable, "-m", "ropescale", *words(place, out, "--steps", "20", "--save-every", "3", "--batch", "4")]


@pytest.mark.slow
@pytest.mark.long
def test_killed_at_ten_random_moments_it_ends_with_the_same_weights(place, tmp_path):
    started, one_thread = time.monotonic(), environment(OMP_NUM_THREADS="1")
    subprocess.run(command(place, tmp_path / "whole"), env=one_thread, check=True, capture_output=True)
    whole, moments = time.monotonic() - started, random.Random(5)
    killed = 0
    while killed < 10:
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        running = subprocess.Popen(
            command(place, tmp_path / "out"), env=one_thread, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(moments.uniform(0.3, 1.0) * whole)
        running.send_signal(signal.SIGKILL)
        killed += running.wait() == -signal.SIGKILL
        if (tmp_path / "out").exists():  # it was finished; begin anew, and be killed again
            assert training.same(tmp_path / "out", tmp_path / "whole")
            shutil.rmtree(tmp_path / "out-training")
    if not (tmp_path / "out").exists():
        done = subprocess.run(command(place, tmp_path / "out"), env=one_thread, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert training.same(tmp_path / "out", tmp_path / "whole")


@pytest.mark.slow
def test_two_processes_share_a_batch(place, tmp_path):
    """The gradients of two halves add up to those of one process, up to the order in which they are summed."""
    assert finetune(place, tmp_path / "one") == 0
    _, *asked = words(place, tmp_path / "two")
    done = launch(2, *asked, command="finetune")
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("6 steps, 3,072 tokens") == 1
    one, two, before = (training.weights(folder) for folder in (tmp_path / "one", tmp_path / "two", place / "model"))
    assert ropescale.verify(tmp_path / "two").live
    for name in one:  # the same windows in each step, so the same way
        moved = (one[name] - before[name]).norm()
        assert (one[name] - two[name]).norm() < 1e-2 * moved, name


def test_settings_that_are_just_being_written_are_not_something_else(place, tmp_path):
    """By the first of several processes, or by one that was killed meanwhile."""
    write_files(tmp_path / "out-training", {"lock": "", ".settings.json.0123456789ab.ropescale": ""})
    assert finetune(place, tmp_path / "out") == 0
