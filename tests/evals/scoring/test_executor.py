"""Scoring a plan's batches where memory is short."""

import re

import numpy as np
import pytest
import torch
from coverage_models import tiny_config
from losses import records_in
from tiny import documents, from_ids, llama
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, Qwen3Config

import ropescale
from ropescale.errors import RunError
from ropescale.evals import perplexity
from ropescale.evals.scoring import memory, tiles
from ropescale.evals.scoring.batches import plan_pass
from ropescale.evals.scoring.executor import Executor
from ropescale.evals.scoring.memory import MemoryEstimate, is_out_of_memory
from ropescale.evals.scoring.scorer import Scorer
from ropescale.evals.searching.learner import Learner

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


def executed(scorer, plan, ids=IDS):
    notes = []
    executor = Executor(scorer, from_ids(ids), None, notes.append)
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


def test_a_window_that_does_not_fit_is_fed_in_chunks_and_the_numbers_stay(monkeypatch):
    monkeypatch.setattr("ropescale.evals.scoring.executor.LEAST_CHUNK", 256)
    ids, plan = documents(2, 1032), plan_pass([1032, 1033], 1032, None, False, 1032)
    small = Small(llama(), positions=260)
    found, notes = executed(small, plan, ids)
    probes = [(1, 64, 16), (1, 64)]  # whether chunks agree, asked before each attempt
    assert small.fed == [(1, 1032), *probes, (1, 1032, 516), *probes, (1, 1032, 258), (1, 1032, 258)]
    assert "out of memory with a window of 1,032 positions; feeding 516 at a time with a key-value" in notes[0]
    assert "feeding 258 at a time" in notes[1] and len(notes) == 2
    for one, whole in zip(found, executed(Scorer(llama()), plan, ids)[0], strict=True):
        assert np.abs(one["nll"] - whole["nll"]).max() < 1e-5


def test_a_window_that_is_estimated_not_to_fit_is_fed_in_chunks_at_once(monkeypatch):
    model = llama(attn_implementation="eager")
    estimate, weights = MemoryEstimate(model, 1), sum(each.numel() * 4 for each in model.parameters())
    monkeypatch.setattr(memory, "LEAST_CHUNK", 256)
    monkeypatch.setattr(memory, "total_memory", lambda device: weights + 2 * estimate.in_chunks(1000, 256))
    ids, plan = documents(1, 1000), plan_pass([1000], 1000, None, False, 1)
    with ropescale.patch(model, "yarn:factor=8"):
        (found,), notes = executed(Scorer(model, logits_bytes=1), plan, ids)
        monkeypatch.undo()
        (whole,), _ = executed(Scorer(model), plan, ids)
    assert notes[0].startswith("a window of 1,000 positions would take about 0.1 GB; feeding 256 at a time")
    assert np.abs(found["nll"] - whole["nll"]).max() < 1e-5


def on_cards(monkeypatch, count, config):
    """The estimate for a model in bfloat16 on cards of 85.0e9 bytes, without its weights."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    cards = [torch.device("cuda", number) for number in range(count)]
    weights = sum(2 * each.numel() for each in model.parameters())
    monkeypatch.setattr(memory, "weight_bytes", lambda model: dict.fromkeys(cards, weights // count))
    monkeypatch.setattr(memory, "device_of", lambda model: cards[0])
    monkeypatch.setattr(memory, "total_memory", lambda device: int(85.0e9))
    return MemoryEstimate(model, 2**30, tiles.ROWS)


@pytest.mark.parametrize(("model_type", "head"), [("gemma3n_text", 32), ("gemma4_text", 64)])
def test_sizes_that_differ_between_layers_count_as_the_largest(model_type, head):
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**tiny_config(model_type))).eval()
    assert memory.heads_of(model)[1] == head and memory.stated(model, "intermediate_size", 0) == 48
    assert Scorer(model).estimate(100).whole(100, 100) > 0 and Learner(model).step_bytes(100) > 0


LLAMA_8B = LlamaConfig(
    vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
    num_key_value_heads=8, rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
)  # fmt: skip
QWEN3_32B = Qwen3Config(
    vocab_size=151936, hidden_size=5120, intermediate_size=25600, num_hidden_layers=64, num_attention_heads=64,
    num_key_value_heads=8, head_dim=128, rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
)  # fmt: skip


def test_models_of_users_fit_onto_their_cards_whole_and_what_cannot_is_refused(monkeypatch):
    llama = on_cards(monkeypatch, 1, LLAMA_8B)
    assert llama.chunk(524_288) is None and 28e9 < llama.whole(524_288, 524_288) < 45e9
    assert llama.batch_tokens(4096) == 32_768
    llama.refuse(1_000_000, chunks=True)
    with pytest.raises(RunError, match=r"a window of 2,000,000 positions needs about [\d,.]+ GB, but .* at ") as said:
        llama.refuse(2_000_000, chunks=True)
    fitting = int(re.search(r"at most ([\d,]+) positions fit", str(said.value))[1].replace(",", ""))
    assert llama.whole(fitting, fitting) <= memory.budget(llama.model, 1) < llama.whole(fitting + 1, fitting + 1)
    whole = MemoryEstimate(llama.model, 2**30).whole(131_072, 131_072)
    assert llama.whole(131_072, 131_072) < 0.6 * whole  # without tiles
    qwen = on_cards(monkeypatch, 2, QWEN3_32B)
    assert qwen.chunk(131_072) is None
    assert on_cards(monkeypatch, 1, QWEN3_32B).chunk(262_144) is not None
    alone = qwen.whole(131_072, 131_072)
    monkeypatch.setattr(type(qwen.model), "tp_size", 2)
    assert MemoryEstimate(qwen.model, 2**30, tiles.ROWS).whole(131_072, 131_072) < 0.7 * alone


def test_a_window_that_cannot_fit_is_refused_before_it_is_fed(monkeypatch):
    scorer, plan = Small(llama(), 10**9), plan_pass([1000], 1000, None, False, 1)
    weights = sum(each.numel() * 4 for each in scorer.model.parameters())
    monkeypatch.setattr(memory, "total_memory", lambda device: weights + 200_000)
    with pytest.raises(RunError, match=r"1,000 positions needs about 1.22 MB, but the weights leave 200 kB of .* cpu"):
        executed(scorer, plan, documents(1, 1000))
    assert all(each[1] == 64 for each in scorer.fed)  # the probes
    needed = scorer.estimate(1000).whole(1000, 1000)
    monkeypatch.setattr(memory, "total_memory", lambda device: weights + 1.5 * needed)
    executed(scorer, plan, documents(1, 1000))
    assert scorer.fed[-1] == (1, 1000)  # more than its share, but chunks with their cache would need even more


def test_what_torch_raises_when_the_machine_has_no_memory_is_known():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**61, dtype=torch.uint8)
    assert is_out_of_memory(caught.value) and is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED"))
    assert is_out_of_memory(torch.OutOfMemoryError("x")) and is_out_of_memory(MemoryError())
    assert not is_out_of_memory(ValueError("out of memory")) and not is_out_of_memory(RuntimeError("shape"))


def test_the_default_batch_follows_the_machine_and_is_a_power_of_two(monkeypatch):
    model = llama()
    estimate, weights = MemoryEstimate(model, 2**20), sum(p.numel() * 4 for p in model.parameters())
    assert estimate.batch_tokens(64) == 8192  # more gains nothing on a CPU
    monkeypatch.setattr(memory, "total_memory", lambda device: weights + 2 * estimate.whole(512, 64))
    assert estimate.batch_tokens(64) == 512
    monkeypatch.setattr(memory, "total_memory", lambda device: 0)
    assert estimate.batch_tokens(64) == 1


def test_numbers_of_tables_that_change_by_themselves_are_not_kept(tmp_path):
    def drift(module, args, output):
        module.inv_freq.mul_(0.5)

    model = llama()
    model.model.rotary_emb.register_forward_hook(drift)
    for _ in range(2):  # nor found by the next run
        with pytest.raises(RunError, match="the rotary tables changed while as-is was measured"):
            perplexity(model, IDS[:2], [16], out=tmp_path)
    assert records_in(tmp_path) == 0
