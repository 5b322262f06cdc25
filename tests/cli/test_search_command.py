"""``ropescale search``, by a text and by keys: the command, its files, its errors, and how it goes on after a stop."""

from __future__ import annotations

import os
import shlex
from functools import partial

import pytest
import tiny
import torch
from configurations import read, write_files
from searching import stop_after
from together import together

from ropescale.schedules.specs import parse

WORDS = ["--target-length", "128", "--budget-tokens", "3072"]
KEYS = ["--objective", "keys", "--target-length", "256", "--budget-tokens", "6k"]


@pytest.fixture(scope="module")
def longer(tmp_path_factory):
    """A tiny Llama of trained length 128 with a tokenizer of bytes, on disk."""
    model = tiny.llama(vocab_size=257, max_position_embeddings=128)
    return str(tiny.checkpoint(tmp_path_factory.mktemp("longer"), model))


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Ten documents of two windows and more."""
    words = {f"{n:02d}.txt": " ".join(map(str, torch.randperm(90 + n).tolist())) for n in range(10)}
    return str(write_files(tmp_path_factory.mktemp("texts"), words))


@pytest.fixture
def search(ran, checkpoint, texts):
    """Runs ``ropescale search`` on these texts."""
    return partial(ran, "search", checkpoint, "--data", texts)


@pytest.fixture
def given(checkpoint, longer, texts):
    """The words of a search by a text, and of one by keys."""
    return {"text": [checkpoint, "--data", texts, *WORDS], "keys": [longer, *KEYS]}


def test_it_prints_the_schedule_and_the_command_that_patches_with_it_and_its_file_is_one_for_every_command(
    ran, search, checkpoint, texts, tmp_path, monkeypatch, one_thread
):
    monkeypatch.chdir(tmp_path)
    out, err = search(*WORDS, "-o", "factors.json")
    assert "tokens in windows of 128" in err
    (spec,) = (line.split("`")[1] for line in out.splitlines() if line.startswith("* found: `"))
    (command,) = (line for line in out.splitlines() if line.startswith("ropescale patch"))
    saved = read(tmp_path / "factors.json")
    assert parse(spec).build() == parse(saved).build()
    ran(*shlex.split(command)[1:], "--json")
    patched = read(tmp_path / "OUT" / "config.json")["rope_parameters"]
    assert patched["rope_type"] == "yarn" and patched["factor"] == saved["factor"] and not patched["truncate"]
    assert {"REPORT.md", "results.json"} <= {path.name for path in (tmp_path / "factors-search").iterdir()}
    for words in (["inspect", checkpoint], ["eval", checkpoint, "--data", texts, "--lengths", "128"]):
        assert "yarn:factor=" in ran(*words, "--schedule", "factors.json").out


@pytest.mark.parametrize(("after", "said"), [(0, "stopped before any batch was finished"), (3, "3 steps are kept")])
def test_ctrl_c_says_once_what_is_kept(search, tmp_path, monkeypatch, after, said):
    stop_after(monkeypatch, after)
    out, err = search(*WORDS, "-o", tmp_path / "factors.json", code=130)
    assert not out
    assert said in err and err.count(" stopped") == 1


def test_by_keys_it_prints_a_schedule_and_writes_the_run(ran, longer, tmp_path, monkeypatch):
    monkeypatch.setattr("ropescale.evals.results.saving.drawn", lambda draw: b"%d panels" % len(draw().axes))
    file = tmp_path / "factors.json"
    out, err = ran("search", longer, *KEYS, "-o", file)
    assert "tokens in prompts of 256: at each length from 128, 6 to learn from, 2 to choose by, and 10 to" in err
    assert "| accuracy " in out and f"ropescale patch {longer}" in out
    saved = read(file)
    assert saved["provenance"]["protocol"]["objective"] == "keys"
    assert parse(str(file)).build() == parse(saved).build()
    assert (tmp_path / "factors-search" / "search.png").read_bytes() == b"3 panels"
    ran("report", tmp_path / "factors-search", "-o", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "gradient, from answers to prompts" in page and "on 10 sets of prompts not used to search" in page


REFUSED = {
    "text": [
        (["--budget-tokens", "300"], "a budget of 300 tokens is too small for a step"),
        (["--target-length", "32"], "is shorter than the trained length"),
        (["--within", "0"], "is not a weight"),
        (["--streaming"], "limit its documents with max_docs (--streaming, --max-docs)"),
    ],
    "keys": [
        (["--data", "texts"], "error: the objective keys reads no text; drop source (--data, --objective)"),
        (["--objective", "text"], "error: missing option '--data'"),
    ],
}


@pytest.mark.parametrize(
    ("objective", "words", "said"), [(objective, *each) for objective, cases in REFUSED.items() for each in cases]
)
def test_wrong_input_is_one_line_and_nothing_is_written(given, refused, tmp_path, objective, words, said):
    asked = given[objective]
    for flag in {*words} & {"--objective", "--target-length", "--budget-tokens"} & {*asked}:
        del asked[asked.index(flag) : asked.index(flag) + 2]
    assert said in refused("search", *asked, *words, "-o", tmp_path / "factors.json")
    assert list(tmp_path.iterdir()) == []


def test_a_name_without_json_is_refused(refused, checkpoint, texts, tmp_path):
    sentence = refused("search", checkpoint, "--data", texts, *WORDS, "-o", tmp_path / "found")
    assert "give one like factors.json" in sentence


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_two_processes_find_the_same_bit_for_bit(ran, given, tmp_path, one_thread):
    for objective, words in given.items():
        found = tmp_path / f"{objective}.json"
        (out, err), (other, _) = together(2, ["search", *words, "-o", str(found)], tmp_path / objective)
        assert out.count("ropescale patch") == 1 and "2 processes searching" in err
        assert "ropescale patch" not in other
        ran("search", *words, "-o", tmp_path / "alone.json", "--force")
        assert read(tmp_path / "alone.json") == read(found)
