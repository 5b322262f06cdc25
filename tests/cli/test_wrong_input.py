"""Input that cannot be used: one line, exit code 2, and nothing written; and results that no output can take away."""

import json
import os
import shutil
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import torch
from configurations import edit
from crashing import unchanged
from gguf_models import write_gguf
from tiny import TEXT
from transformers import AutoModelForCausalLM

from ropescale.cli.main import main

ONE = ["--lengths", "64", "--windows", "1"]


@pytest.fixture
def copied(checkpoint, tmp_path):
    """A copy of the checkpoint, to be damaged."""
    return Path(shutil.copytree(checkpoint, tmp_path / "copied"))


# --- weights ---


def test_nobody_who_computes_in_float32_is_told_to(ran, checkpoint, texts, monkeypatch):
    from ropescale.evals.scoring.scorer import Scorer

    score = Scorer.score
    monkeypatch.setattr(Scorer, "score", lambda self, *args: score(self, *args) * torch.nan)
    for dtype, said in {"float32": "; try a smaller factor", "bfloat16": "; try float32, or a smaller"}.items():
        assert said in ran("eval", checkpoint, "--data", texts, *ONE, "--dtype", dtype, code=1).err


def test_a_dtype_that_torch_does_not_have_is_named_with_its_file(refused, copied, texts):
    edit(copied, dtype="evil")
    said = refused("eval", copied, "--data", texts, *ONE)
    assert said.startswith(f"error: dtype is 'evil' in {copied}/config.json, which is not a torch dtype")


# --- texts ---


def parquet_of(*texts):
    table = pyarrow.Table.from_arrays(texts, names=["text"] * len(texts))
    pyarrow.parquet.write_table(table, "rows.parquet")


def test_texts_that_cannot_be_read_are_refused_however_little_is_measured(refused, checkpoint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["eval", checkpoint, *ONE, "--data"]
    Path("rows.jsonl").write_text(json.dumps({"text": f"{TEXT * 9}\ud800"}) + "\n")
    assert f"rows.jsonl line 1 has a lone surrogate at character {9 * len(TEXT)}" in refused(*words, "rows.jsonl")
    stored = pyarrow.array([b"\xff\xfe" * 90], pyarrow.binary())
    parquet_of(pyarrow.Array.from_buffers(pyarrow.string(), 1, stored.buffers()))
    assert "rows.parquet holds a value that Python cannot read ('utf-8' codec" in refused(*words, "rows.parquet")
    parquet_of(*[pyarrow.array([TEXT])] * 2)
    assert "rows.parquet has 2 columns named 'text'; rename all but one" in refused(*words, "rows.parquet")


def test_results_are_not_written_among_the_texts(refused, checkpoint, texts):
    said = refused("eval", checkpoint, "--data", texts, *ONE, "-o", f"{texts}/")
    assert said == f"error: {texts}/ contains the measured text; choose another folder (-o, --data)"
    assert sorted(os.listdir(texts)) == ["a.txt", "b.txt", "c.txt"]


# --- the surroundings ---


HALVES = {"x": "RANK=0, WORLD_SIZE=x, LOCAL_RANK=0 are not valid process numbers"}
HALVES |= {"2": "environment variable RANK expected, but not set; start with torchrun"}


@pytest.mark.parametrize(("given", "said"), HALVES.items())
def test_a_launcher_that_says_half_of_what_it_should_is_named(refused, checkpoint, texts, monkeypatch, given, said):
    monkeypatch.setenv("WORLD_SIZE", given)
    assert said in refused("eval", checkpoint, "--data", texts, *ONE)


# --- numbers ---


def test_more_trials_than_fit_into_memory_are_refused_at_once(refused, checkpoint):
    said = refused("retrieval", checkpoint, "--lengths", "300", "--trials", "1000000000")
    assert said.startswith("error: 1000000000 trials are too many")


# --- what is printed, and what is kept ---


@pytest.fixture
def full(monkeypatch):
    """Sends a stream to a full disk: ``full("stdout")``."""
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full")

    def fill(name):
        monkeypatch.setattr(sys, name, open("/dev/full", "w"))  # noqa: SIM115

    return fill


KEPT = [
    (["eval", "CKPT", "--data", "texts", *ONE, "-o", "out"], "out/results.json"),
    (["keys", "CKPT", "--data", "long", "--window", "64", "-o", "out"], "out"),
    (["patch", "CKPT", "--schedule", "yarn:factor=2", "-o", "out"], "out/ropescale.json"),
]


@pytest.mark.parametrize(("words", "kept"), KEPT, ids=lambda each: each[0] if isinstance(each, list) else "")
def test_a_result_that_cannot_be_printed_is_kept(checkpoint, texts, tmp_path, monkeypatch, capsys, full, words, kept):
    monkeypatch.chdir(tmp_path)
    Path("long").write_text(TEXT * 9)
    full("stdout")
    assert main([checkpoint if word == "CKPT" else word for word in words]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("error: the result cannot be printed: No space left on device; it is stored in ")
    assert last.endswith("out") and (tmp_path / kept).exists()


def test_notes_that_cannot_be_written_end_nothing(checkpoint, texts, tmp_path, capsys, full):
    full("stderr")
    assert main(["eval", checkpoint, "--data", str(texts), *ONE, "-o", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "results.json").exists() and "| as-is" in capsys.readouterr().out


# --- two at once, and signals ---


# --- folders that cannot be written ---


WRITING = [
    "patch CHECKPOINT --schedule yarn:factor=2 -o /proc/new",
    "gguf MODEL.gguf --schedule yarn:factor=2 -o /proc/new.gguf",
    "inspect CHECKPOINT --plot /proc/new.png",
    "eval nowhere --data TEXT --lengths 64 -o /proc/new",
    "recommend CHECKPOINT --data TEXT --target-length 512 -o /proc/new",
    "retrieval nowhere --lengths 256 -o /proc/new",
    "report nowhere -o /proc/new.html",
    "keys nowhere --data TEXT -o /proc/new.json",
    "search CHECKPOINT --data TEXT --target-length 512 -o /proc/new.json",
    "demo -o /proc/new",
]


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder that also root cannot write into")
@pytest.mark.parametrize("words", WRITING)
def test_an_unwritable_folder_and_a_dangling_link_are_refused_at_once(words, refused, checkpoint, texts, tmp_path):
    if "gguf" in words:
        write_gguf(AutoModelForCausalLM.from_pretrained(checkpoint), tmp_path / "model.gguf")
    named = {"CHECKPOINT": checkpoint, "TEXT": texts, "MODEL.gguf": tmp_path / "model.gguf"}
    [*words, out] = (named.get(word, word) for word in words.split())
    said = refused(*words, out)
    assert "/proc/new" in said and ("cannot write" in said or "cannot be written" in said)
    link = tmp_path / Path(out).name
    link.symlink_to(tmp_path / "elsewhere")
    with unchanged(tmp_path):
        assert str(link) in refused(*words, link)


RUNS = ["eval MODEL --data TEXT --lengths 32", "retrieval MODEL --lengths 32", "demo"]
RUNS += [f"{name} MODEL --data TEXT --target-length 128" for name in ("recommend", "search")]


@pytest.mark.parametrize("words", RUNS)
def test_a_run_is_not_written_into_a_models_folder(words, refused, copied, texts, tmp_path):
    model = copied.rename(tmp_path / "q-search")
    (model / "model.safetensors").write_bytes(b"whoever reads this fails")
    out, named = tmp_path / "q.json" if "search" in words else model, {"MODEL": model, "TEXT": texts}
    with unchanged(tmp_path):
        said = refused(*(named.get(word, word) for word in words.split()), "-o", out)
    assert said == f"error: cannot write into {model}: it holds a model (config.json) and no run; choose another folder"
