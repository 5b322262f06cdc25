"""Models too large for one device, over processes (--tp) or the devices of one (--device-map): the same numbers."""

import json
from pathlib import Path

import numpy as np
import pytest
import tiny
import tiny_models
import torch
from configurations import write_files
from crashing import raising
from launching import assert_agree, launch

from ropescale.checkpoints.loading import load_model
from ropescale.errors import DataError, RunError
from ropescale.evals import perplexity
from ropescale.evals.parallel.processes import Sharing, World
from ropescale.evals.scoring import memory
from ropescale.evals.scoring.scorer import Scorer

DISK = {"model.rotary_emb": "cpu", "model.layers.1": "cpu"}
DISK |= dict.fromkeys(["model.embed_tokens", "model.layers.0", "model.norm", "lm_head"], "disk")


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Five documents of different sizes."""
    texts = {f"{number}.txt": " ".join(map(str, range(7 * number, 90 + 20 * number))) for number in range(5)}
    return write_files(tmp_path_factory.mktemp("texts"), texts)


def measured(model, out=None):
    schedules = ["yarn:factor=2", "dynamic:factor=2"]
    return perplexity(model, tiny.documents(3, 150, 256), [64, 127], schedules, stride=40, out=out, short_context=False)


def test_weights_that_wait_on_the_disk_give_the_same_numbers(checkpoint):
    """Under a static schedule and one frozen at each length; what is on the disk is read when its turn comes."""
    plain, spread = load_model(Path(checkpoint), device="cpu"), load_model(Path(checkpoint), device_map=DISK)
    assert {p.device.type for p in spread.parameters()} == {"cpu", "meta"}
    assert next(spread.parameters()).device.type == "meta"  # and is entered where it computes
    assert memory.device_of(spread) == torch.device("cpu") == Scorer(spread).device
    for mine, other in zip(measured(spread).passes, measured(plain).passes, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(mine.nll, other.nll, strict=True))


def test_weights_are_loaded_onto_their_device(checkpoint, monkeypatch):
    monkeypatch.setattr("ropescale.checkpoints.loading.usable_device", torch.device)
    monkeypatch.setattr("ropescale.checkpoints.loading._complete", lambda folder, loaded, place: loaded[0])
    assert {each.device.type for each in load_model(Path(checkpoint), device="meta").parameters()} == {"meta"}


def test_a_device_map_of_the_command_line_reaches_the_model_and_gives_equal_rows(checkpoint, texts, ran, monkeypatch):
    maps = []

    def load(*given, **named):
        maps.append(named["device_map"])
        return load_model(*given, **named)

    monkeypatch.setattr("ropescale.evals.backends.opening.load_model", load)
    words = ["eval", checkpoint, "--data", texts, "--lengths", "60,127", "--schedule", "yarn:factor=2", "--json"]
    plain, spread = (json.loads(ran(*words, *more)[0])["rows"] for more in ([], ["--device-map", "auto"]))
    assert spread == plain and maps == [None, "auto"]


def test_the_memory_left_is_that_of_the_fullest_device(checkpoint, monkeypatch):
    model, (one, other) = load_model(Path(checkpoint), device="cpu"), (torch.device("cuda", 0), torch.device("cuda", 1))
    monkeypatch.setattr(memory, "total_memory", lambda device: 1000 * 10**6)
    for weights, least in [({one: 100 * 10**6, other: 700 * 10**6}, 300), ({torch.device("cpu"): 4 * 10**6}, 996)]:
        monkeypatch.setattr(memory, "weight_bytes", lambda model, found=weights: found)
        assert memory.budget(model) == 0.5 * least * 10**6  # the inputs are on a processor


def test_memory_that_is_short_in_a_shared_model_is_an_error(checkpoint, monkeypatch):
    model = load_model(Path(checkpoint), device="cpu")
    monkeypatch.setattr(type(model), "tp_size", 2)
    monkeypatch.setattr(Scorer, "score", raising(torch.OutOfMemoryError("full")))
    with pytest.raises(RunError, match="several processes"):
        measured(model)


EXCLUSIVE = [
    (2, {"tp": True, "device_map": "auto"}, "tp and device_map are mutually exclusive ways to share the work"),
    (1, {"tp": True}, "tp shards the model over several processes, but only one is running"),
    (2, {"tp": True, "device": "cpu"}, "tp assigns the devices itself; leave the device out"),
    (1, {"device_map": "auto", "device": "cpu"}, "device_map assigns the devices itself; leave the device out"),
    (2, {"device_map": "auto"}, "device_map needs a single process, not 2; leave torchrun out, or use"),
]


@pytest.mark.parametrize(("size", "given", "said"), EXCLUSIVE)
def test_ways_that_exclude_each_other_are_refused(size, given, said):
    with pytest.raises(DataError) as caught:
        Sharing(**given).teams(World(size=size))
    assert said in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama", "gemma2", "qwen2"])
def test_a_model_shared_by_two_processes_gives_the_numbers_of_one(kind, texts, tmp_path):
    """And is kept once, and found again."""
    tiny.checkpoint(tmp_path / "model", tiny_models.build(kind, vocab_size=258))
    schedules = ["--schedule", "yarn:factor=2", "--schedule", "dynamic:factor=2", "--layers", "all"]
    words = [tmp_path / "model", "--data", texts, "--lengths", "60,127", *schedules, "-o"]
    runs = [launch(1, *words, tmp_path / "1"), launch(2, *words, tmp_path / "2", "--tp")]
    assert [run.returncode for run in runs] == [0, 0], runs[-1].stderr
    assert "2 processes in teams of 2 measuring" in runs[1].stderr
    alone, shared = [json.loads((tmp_path / n / "results.json").read_text()) for n in "12"]
    assert alone["model"] == shared["model"]
    assert_agree(tmp_path / "1", tmp_path / "2")
    assert [path.name for path in (tmp_path / "2").glob("resume/*.records")] == ["0.records"]
    whole = (tmp_path / "2" / "results.json").read_bytes()
    assert "batches are done already; nothing is run" in launch(2, *words, tmp_path / "2", "--tp").stderr
    assert (tmp_path / "2" / "results.json").read_bytes() == whole


@pytest.mark.slow
def test_a_class_without_a_plan_is_refused_by_name(texts, tmp_path):
    tiny.checkpoint(tmp_path, tiny_models.build("opt", vocab_size=258))
    done = launch(2, tmp_path, "--data", texts, "--lengths", "60", "--tp")
    assert done.returncode and done.stderr.count("error: ") == 1
    assert "tp_plan" in done.stderr
