"""A measurement by many processes: the same bytes, whoever scored what, and clear words when one fails."""

import itertools
import json
import signal
from pathlib import Path

import pytest
import tiny
import torch
from configurations import write_files
from launching import launch, launch_alike, results_in
from losses import records_in

import ropescale
from ropescale.cli.main import main
from ropescale.evals import reference
from ropescale.evals.parallel.processes import World, world
from ropescale.evals.scoring.batches import cost, owners, plan_pass


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Ten documents of very different sizes."""
    sizes = [torch.randperm(40 + 60 * number).tolist() for number in range(10)]
    texts = {f"{number:02d}.txt": " ".join(map(str, each)) for number, each in enumerate(sizes)}
    return write_files(tmp_path_factory.mktemp("texts"), texts)


SIZES = [64] * 9, [500, 10, 900, 64, 64], [80]


@pytest.mark.parametrize(("sizes", "processes"), list(itertools.product(SIZES, (1, 2, 5))))
def test_every_batch_has_one_owner_and_no_process_has_more_than_graham_allows(sizes, processes):
    batches = plan_pass(sizes, 32, 16, bos=True, batch_tokens=64).batches
    owner = owners(list(map(cost, batches)), processes)
    assert len(owner) == len(batches) and set(owner) <= set(range(processes))
    loads = [sum(cost(b) for b, who in zip(batches, owner, strict=True) if who == rank) for rank in range(processes)]
    best = max(sum(loads) / processes, max(map(cost, batches)))  # no split can do better than either
    assert max(loads) <= 4 / 3 * best + max(map(cost, batches)) / 3


def test_the_world_is_what_the_launcher_says_and_each_process_takes_its_own_gpu_unless_told_otherwise(monkeypatch):
    assert world({}) == World(0, 1, 0)
    given = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}
    assert world(given) == World(5, 8, 1)
    assert str(world(given)) == "8 processes" and not world(given).leads
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert World(3, 4, 1).device(None) == "cuda:1"
    assert World(3, 4, 1).device("cpu") == "cpu" and World().device(None) is None


@pytest.mark.slow
def test_one_two_and_three_processes_write_the_same_bytes(checkpoint, texts, tmp_path, ran):
    """With a length-dependent schedule, sliding windows, documents of all sizes and key tokens."""
    found_keys = "--window 16 --stride 8 --alpha 0 --beta -9".split()
    keys = ["keys", checkpoint, "--data", texts, *found_keys, "-o", tmp_path / "keys.json"]
    assert main([*map(str, keys)]) == 0
    words = [checkpoint, "--data", texts, "--lengths", "64,128", "--stride", 32, "--batch-tokens", 256]
    words += ["--schedule", "yarn:factor=2", "--schedule", "dynamic:factor=2"]
    words += ["--key-spans", tmp_path / "keys.json", "--verbose", "-o"]
    runs = launch_alike(3, words, tmp_path)
    assert f"Command: `ropescale eval {checkpoint} --data" in (tmp_path / "2" / "REPORT.md").read_text()
    assert len({run.stdout for run in runs}) == 1 and "| yarn:factor=2" in runs[0].stdout
    found = json.loads((tmp_path / "3" / "results.json").read_text())["key_tokens"]["rows"]
    assert len(found) == 6 and all(row["tokens"] > 100 and row["ppl"] > 1 for row in found)
    assert [run.stderr.splitlines()[0] for run in runs[1:]] == ["2 processes measuring", "3 processes measuring"]
    ran("eval", *words, tmp_path / "alone")  # which no launcher started
    alone, shared = (json.loads((tmp_path / name / "results.json").read_text())["rows"] for name in ("alone", "1"))
    assert [row["forward_passes"] for row in alone] == [row["forward_passes"] for row in shared]
    assert [row["nll"] for row in alone] == pytest.approx([row["nll"] for row in shared], abs=1e-6)


@pytest.mark.slow
def test_a_run_killed_with_two_processes_is_continued_by_three(tmp_path):
    """At whatever moment the first log appeared; nothing is scored twice, and the bytes are the same."""
    files = sorted(Path(ropescale.__file__).parent.rglob("*.py"))[:6]
    texts = write_files(tmp_path / "texts", {f"{file.stem}.txt": file.read_text() * 3 for file in files})
    options = "--lengths 1k --batch-tokens 1024 --schedule ntk:factor=4".split()
    words = [reference.CHECKPOINT, "--data", texts, *options]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert launch(1, *words, "-o", whole).returncode == 0
    assert launch(2, *words, "-o", killed, stop_after=killed).returncode == -signal.SIGKILL
    assert not (killed / "results.json").exists()
    again = launch(3, *words, "-o", killed)
    assert again.returncode == 0 and "resuming: " in again.stderr, again.stderr
    assert results_in(killed) == results_in(whole) and records_in(killed) == records_in(whole)


WRONG = [
    ("nowhere.txt", "yarn:factor=2", "no file or folder at 'nowhere.txt'"),
    (None, "yran", "no schedule named 'yran'"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("data", "schedule", "said"), WRONG)
def test_an_error_that_all_processes_meet_is_said_once(checkpoint, texts, data, schedule, said):
    done = launch(2, checkpoint, "--data", data or texts, "--lengths", "64", "--schedule", schedule)
    assert done.returncode and done.stdout == ""
    assert done.stderr.count(f"error: {said}") == 1 and done.stderr.count("error: ") == 1


@pytest.mark.slow
def test_a_process_that_fails_says_why(texts, tmp_path):
    """A model whose weights of the letter 7 are NaN: the process that meets one speaks, whichever it is."""
    model = tiny.llama(vocab_size=258)
    model.model.embed_tokens.weight.data[tiny.byte_tokenizer().convert_tokens_to_ids("7")] = float("nan")
    words = [tiny.checkpoint(tmp_path / "model", model), "--data", texts, "--lengths", "64", "--batch-tokens", 64]
    done = launch(2, *words)
    assert done.returncode and "the model's weights contain NaN or infinity" in done.stderr
    assert done.stdout == ""


@pytest.mark.slow
def test_processes_share_the_prompts_of_a_retrieval_run(checkpoint, tmp_path):
    """Two lengths, a schedule whose tables follow the length and one that repeats others': the same bytes."""
    words = [checkpoint, "--lengths", "700,900", "--depths", "0,0.5,1", "--trials", 3]
    words += ["--batch-tokens", 1400, "--schedule", "dynamic:factor=2", "--schedule", "linear:factor=1", "--verbose"]
    runs = launch_alike(3, [*words, "-o"], tmp_path, "retrieval")
    assert len({(tmp_path / str(n) / "answers.csv").read_bytes() for n in (1, 2, 3)}) == 1
    assert len({run.stdout for run in runs}) == 1 and runs[1].stdout.count("| accuracy ") == 1
    assert "2 processes measuring" in runs[1].stderr


@pytest.mark.slow
def test_processes_share_a_recommendation(checkpoint, texts, tmp_path):
    words = [checkpoint, "--target-length", 128, "--data", texts, "--batch-tokens", 256, "-o"]
    launch_alike(2, words, tmp_path, "recommend")
    assert len({(tmp_path / str(n) / "results.csv").read_bytes() for n in (1, 2)}) == 1
