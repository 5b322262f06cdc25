"""Scoring a plan's batches where memory is short."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from launching import environment
from losses import records_in
from tiny import documents, from_ids, llama

import ropescale
from ropescale.errors import RunError
from ropescale.evals import perplexity
from ropescale.evals.progress import duration
from ropescale.evals.running.runner import WARM_SECONDS
from ropescale.evals.scoring import memory
from ropescale.evals.scoring.batches import plan_pass
from ropescale.evals.scoring.executor import Executor
from ropescale.evals.scoring.memory import default_batch_tokens, is_out_of_memory, position_bytes
from ropescale.evals.scoring.scorer import Scorer

HELPERS = Path(__file__).parents[2] / "helpers"
IDS = documents(9, 40)


class Small(Scorer):
    """A device that holds so many positions and no more."""

    def __init__(self, model, positions, error=None):
        super().__init__(model)
        self.positions, self.error = positions, error or torch.OutOfMemoryError("CUDA out of memory.")
        self.fed = []

    def score(self, ids, chunk=None):
        self.fed.append((*ids.shape, *([chunk] if chunk else [])))
        if (chunk or ids.numel()) > self.positions:
            raise self.error
        return super().score(ids, chunk)


def executed(scorer, plan):
    notes = []
    executor = Executor(scorer, from_ids(IDS), None, notes.append)
    return [executor.score(batch) for batch in plan.batches], notes


def test_a_batch_that_does_not_fit_is_scored_in_halves_and_the_numbers_stay():
    plan = plan_pass([len(each) for each in IDS], 40, None, False, 320)  # 8 windows, and 1
    small = Small(llama(), positions=100)
    (first, second), notes = executed(small, plan)
    assert small.fed == [(8, 40), (4, 40), (2, 40), (2, 40), (2, 40), (2, 40), (1, 40)]
    whole, _ = executed(Scorer(llama()), plan)
    assert np.abs(first["nll"] - whole[0]["nll"]).max() < 1e-5 and np.array_equal(second["nll"], whole[1]["nll"])
    assert notes[0].startswith("out of memory with 8 windows of 40 positions; continuing with 4 at a time")
    assert notes[1].startswith("out of memory with 4 windows") and "batch_tokens 80 avoids this attempt" in notes[1]


def test_a_single_window_that_does_not_fit_says_what_to_do():
    plan = plan_pass([40, 41], 40, None, False, 80)
    with pytest.raises(RunError, match=r"40 positions .*memory of cpu; use shorter"):
        executed(Small(llama(), positions=39), plan)
    with pytest.raises(RuntimeError, match="device-side assert"):  # another error is not taken for missing memory
        executed(Small(llama(), positions=39, error=RuntimeError("device-side assert triggered")), plan)


def test_a_window_that_does_not_fit_is_fed_in_chunks_and_the_numbers_stay():
    ids = from_ids(documents(2, 1032))
    plan = plan_pass([1032, 1033], 1032, None, False, 1032)
    small, notes = Small(llama(), positions=260), []
    executor = Executor(small, ids, None, notes.append)
    found = [executor.score(batch) for batch in plan.batches]
    probes = [(1, 64, 16), (1, 64)]  # whether chunks agree, asked before each attempt
    assert small.fed == [(1, 1032), *probes, (1, 1032, 516), *probes, (1, 1032, 258), (1, 1032, 258)]
    assert "out of memory with a window of 1,032 positions; feeding 516 at a time with a key-value" in notes[0]
    assert "feeding 258 at a time" in notes[1] and len(notes) == 2
    whole = Executor(Scorer(llama()), ids, None, notes.append)
    for one, batch in zip(found, plan.batches, strict=True):
        assert np.abs(one["nll"] - whole.score(batch)["nll"]).max() < 1e-5


def test_a_window_that_is_estimated_not_to_fit_is_fed_in_chunks_at_once(monkeypatch):
    model = llama()
    monkeypatch.setattr(memory, "total_memory", lambda device: 2**20)
    ids, notes = from_ids(documents(1, 1000)), []
    executor = Executor(Scorer(model, logits_bytes=1), ids, None, notes.append)
    (batch,) = plan_pass([1000], 1000, None, False, 1).batches
    with ropescale.patch(model, "yarn:factor=8"):
        found = executor.score(batch)
        monkeypatch.undo()
        whole = Executor(Scorer(model), ids, None, notes.append).score(batch)
    assert notes[0].startswith("a window of 1,000 positions would take about 0.0 GB; feeding 256 at a time")
    assert np.abs(found["nll"] - whole["nll"]).max() < 1e-5


def test_what_torch_raises_when_the_machine_has_no_memory_is_known():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**61, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)
    assert is_out_of_memory(torch.OutOfMemoryError("x")) and is_out_of_memory(MemoryError())
    assert not is_out_of_memory(ValueError("out of memory")) and not is_out_of_memory(RuntimeError("shape"))


GROWN = """
import re, torch
from tiny import llama
from ropescale.evals.scoring.scorer import Scorer
scorer = Scorer(llama(hidden_size=256, intermediate_size=1024, num_attention_heads=8, num_key_value_heads=8))
ids = torch.randint(61, (1, 16384))
peak = lambda: 1024 * int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])  # its own alone
with torch.inference_mode():
    scorer.score(ids[:, :64])
    before = peak()
    scorer.score(ids)
print(peak() - before)
"""


@pytest.mark.slow
def test_the_estimate_of_a_forward_pass_is_near_enough_that_half_of_the_memory_suffices(python):
    if not Path("/proc/self/status").exists():
        pytest.skip("needs Linux's peak of one process")
    done = python("-c", GROWN, env=environment(HELPERS))
    assert done.returncode == 0, done.stderr
    model = llama(hidden_size=256, intermediate_size=1024, num_attention_heads=8, num_key_value_heads=8)
    estimate = position_bytes(model, 16384) * 16384 + 3 * 4 * 61 * 16384
    # The budget is half of what the weights leave, so a pass may take twice the estimate.
    assert estimate / 3 <= int(done.stdout) <= 1.5 * estimate


def test_the_default_batch_follows_the_machine_and_is_a_power_of_two(monkeypatch):
    model = llama()
    assert default_batch_tokens(model, 64, 2**20) == 8192  # more gains nothing on a CPU
    each = position_bytes(model, 64)
    weights = sum(p.numel() * 4 for p in model.parameters())
    monkeypatch.setattr(memory, "total_memory", lambda device: weights + 2 * (3 * 2**20 + 1000 * each))
    assert default_batch_tokens(model, 64, 2**20) == 512
    monkeypatch.setattr(memory, "total_memory", lambda device: 0)
    assert default_batch_tokens(model, 64, 2**20) == 1
    assert perplexity(model, IDS[:2], [16]).protocol["batch_tokens"] == 1


def test_numbers_of_tables_that_change_by_themselves_are_not_kept(tmp_path):
    def drift(module, args, output):
        module.inv_freq.mul_(0.5)

    model = llama()
    model.model.rotary_emb.register_forward_hook(drift)
    for _ in range(2):  # nor found by the next run
        with pytest.raises(RunError, match="the rotary tables changed while as-is was measured"):
            perplexity(model, IDS[:2], [16], out=tmp_path)
    assert records_in(tmp_path) == 0


# --- how long it will be -------------------------------------------------------------------------------------------


class Timed(Scorer):
    """Takes a second per million FLOPs, and a minute more for the first window, by a clock of its own."""

    clock = 0.0

    def score(self, ids, chunk=None):
        first = 60.0 if Timed.clock == 0.0 else 0.0
        Timed.clock += first + ids.numel() * memory.work(self.model, ids.shape[1]) / 1e6
        return super().score(ids, chunk)


def test_a_long_run_says_how_long_it_will_be_from_windows_that_were_run_warm(monkeypatch):
    lines = []
    monkeypatch.setattr(Timed, "clock", 0.0)
    monkeypatch.setattr("ropescale.evals.progress.Notes.tell", lambda self, line, level=0: lines.append(line))
    monkeypatch.setattr("ropescale.evals.backends.loaded.Scorer", lambda model, logits_bytes: Timed(model))
    monkeypatch.setattr("ropescale.evals.running.runner.time.perf_counter", lambda: Timed.clock)
    perplexity(llama(), documents(40, 64), [64], bos="no", windows=1, batch_tokens=64)
    each = 64 * memory.work(llama(), 64) / 1e6
    assert Timed.clock == pytest.approx(60 + 40 * each)
    warm = math.ceil(WARM_SECONDS / each)
    left = (40 - 1 - warm) * each
    [line] = [line for line in lines if line.startswith("time:")]
    assert line == f"time: {duration(left)} to go, at the speed of the last {warm * each:.0f} s"
