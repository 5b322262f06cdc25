"""``ropescale search``: the command, its files, its errors, and how it goes on after a stop."""

import os
import shlex
from functools import partial

import pytest
import torch
from configurations import read, write_files
from searching import stop_after
from together import together

from ropescale.schedules.specs import parse

WORDS = ["--target-length", "128", "--budget-tokens", "3072"]


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Ten documents of two windows and more."""
    words = {f"{n:02d}.txt": " ".join(map(str, torch.randperm(90 + n).tolist())) for n in range(10)}
    return str(write_files(tmp_path_factory.mktemp("texts"), words))


@pytest.fixture
def search(ran, checkpoint, texts):
    """Runs ``ropescale search`` on these texts."""
    return partial(ran, "search", checkpoint, "--data", texts)


@pytest.mark.usefixtures("one_thread")
def test_its_schedule_is_printed_and_its_file_serves_all(ran, search, checkpoint, texts, tmp_path, monkeypatch):
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


WRONG = [
    (["--budget-tokens", "300"], "a budget of 2 windows of 128 tokens is too small for a step"),
    (["--target-length", "32"], "is shorter than the trained length"),
    (["--streaming"], "limit its documents with --max-docs (--streaming)"),
    (["-o", "found"], "give one like factors.json"),
]


@pytest.mark.parametrize(("words", "said"), WRONG)
def test_wrong_input_is_one_line_and_nothing_is_written(refused, checkpoint, texts, tmp_path, words, said):
    pairs = [*zip(WORDS[::2], WORDS[1::2], strict=True), ("-o", tmp_path / "factors.json")]
    asked = [each for flag, value in pairs if flag not in words for each in (flag, value)]
    assert said in refused("search", checkpoint, "--data", texts, *asked, *words)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_two_processes_find_the_same_bit_for_bit(ran, checkpoint, texts, tmp_path, one_thread):
    words = [checkpoint, "--data", texts, *WORDS]
    (out, err), (other, _) = together(2, ["search", *words, "-o", str(tmp_path / "found.json")], tmp_path / "two")
    assert out.count("ropescale patch") == 1 and "2 processes measuring" in err
    assert "ropescale patch" not in other
    ran("search", *words, "-o", tmp_path / "alone.json")
    assert read(tmp_path / "alone.json") == read(tmp_path / "found.json")
