"""``ropescale search --objective keys``: the command, its refusals, its files, and many processes."""

from __future__ import annotations

import json

import pytest
import tiny
from launching import launch

import ropescale

WORDS = ["--objective", "keys", "--target-length", "256", "--budget-tokens", "6k"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A tiny Llama of trained length 128 with a tokenizer of bytes, on disk."""
    model = tiny.llama(vocab_size=257, max_position_embeddings=128)
    return str(tiny.checkpoint(tmp_path_factory.mktemp("checkpoint"), model))


def test_it_prints_a_schedule_and_writes_the_run(ran, checkpoint, tmp_path):
    file = tmp_path / "factors.json"
    out, err = ran("search", checkpoint, *WORDS, "-o", file)
    assert "tokens in prompts of 256: 6 to learn from, 2 held out of each length from 128 on" in err
    assert "held-out prompts, length" in out and f"ropescale patch {checkpoint}" in out
    saved = json.loads(file.read_text())
    assert saved["provenance"]["protocol"]["objective"] == "keys"
    assert (
        ropescale.schedules.reading.specs.parse(str(file)).build()
        == ropescale.schedules.reading.specs.parse(saved).build()
    )
    assert {"REPORT.md", "results.json", "search.png"} <= {
        path.name for path in (tmp_path / "factors-search").iterdir()
    }
    ran("report", tmp_path / "factors-search", "-o", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "gradient, from answers to prompts" in page and "on prompts that were held out" in page


def test_the_keys_may_lie_in_a_text_of_the_users(ran, checkpoint, tmp_path):
    (tmp_path / "hay.txt").write_text("The zebras were grazing. The yaks had gone to sleep. " * 20)
    out, _ = ran("search", checkpoint, *WORDS, "--haystack", tmp_path / "hay.txt", "--json")
    assert json.loads(out)["data"]["source"].endswith("hay.txt")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--data", "texts"], "error: --data is given, and --objective keys reads no text; drop it"),
        (["--glob", "*.txt"], "error: --glob is given, and --objective keys reads no text; drop it"),
        (["--max-docs", "3"], "error: --max-docs is given, and --objective keys reads no text; drop it"),
        (["--concat"], "error: --concat is given, and --objective keys reads no text; drop it"),
        (["--objective", "key"], "'key' is not known; did you mean 'keys'?"),
        (["--objective", "text"], "error: missing option '--data'"),
        (
            ["--objective", "text", "--data", "x", "--haystack", "y"],
            "error: --haystack is given, and nothing is hidden",
        ),
        (["--haystack", "nowhere.txt"], "nowhere.txt"),
        (["--budget-tokens", "4k"], "error: --budget-tokens 4096 has no room for a step at 256 tokens; give at least"),
        (["--within", "1"], "error: --within is given, and prompts of --objective keys have the target length"),
        (["--target-length", "128"], "needs no schedule"),
        (["--method", "evolution", "--keep-short"], "--keep-short is for the ramp"),
    ],
)
def test_wrong_input_is_one_line_and_nothing_is_written(refused, checkpoint, tmp_path, words, said):
    given = [*WORDS]
    for flag in set(words) & {"--objective", "--target-length", "--budget-tokens"}:
        del given[given.index(flag) : given.index(flag) + 2]
    assert said in refused("search", checkpoint, *given, *words, "-o", tmp_path / "factors.json")
    assert list(tmp_path.iterdir()) == []


def test_two_processes_find_the_same_bit_for_bit(ran, checkpoint, tmp_path, one_thread):
    alone, shared = tmp_path / "alone.json", tmp_path / "shared.json"
    ran("search", checkpoint, *WORDS, "-o", alone)
    done = launch(2, checkpoint, *WORDS, "-o", shared, command="search")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("ropescale patch") == 1 and "2 processes searching" in done.stderr
    assert json.loads(alone.read_text()) == json.loads(shared.read_text())
