"""A window shared by several processes: what one alone computes, for every architecture, or a refusal that names it."""

from __future__ import annotations

import copy
import json
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import coverage_models
import pytest
import tiny
import tiny_models
import torch
from crashing import raising
from launching import assert_agree, launch

import ropescale
from ropescale.errors import ConfigError, DataError, RunError
from ropescale.evals.parallel import sequence
from ropescale.evals.parallel.processes import World
from ropescale.evals.parallel.sequence import Shard, ShardedScorer, _counts_positions
from ropescale.evals.scoring.batches import plan_pass
from ropescale.evals.scoring.executor import Executor


class Threads:
    """The processes of a team, as threads of this one."""

    def __init__(self, rank, size, shared=(None, None)):
        self.rank, self.size, (self.barrier, self.box) = rank, size, shared

    def gathered(self, own):
        self.box[self.rank] = own
        self.barrier.wait(60)
        parts = [part.clone() for part in self.box]
        self.barrier.wait(60)
        return parts


def teamwork(model, size, work):
    """What ``work(scorer)`` gives to every process of a team, each with a model of its own."""
    shared = threading.Barrier(size), [None] * size

    def one(rank):
        with torch.inference_mode():
            return work(ShardedScorer(copy.deepcopy(model), Threads(rank, size, shared)))

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(one, range(size)))


def checked(ids):
    def work(scorer):
        scorer.check(ids[0])
        return scorer.score(ids)

    return work


def naive(model, ids):
    return torch.tensor([tiny.naive_nll(model, row) for row in ids.tolist()])


EXACT = ["llama", "qwen2", "gemma2", "gemma3_text", "olmo3", "gpt_neox", "phi3", "deepseek_v3", "gpt_oss", "glm4"]


@pytest.mark.parametrize("kind", EXACT)
def test_two_processes_say_of_every_token_what_one_says(kind):
    """Windows, softcaps, sinks, MLA, partial rotary; 101 positions are no multiple of 4."""
    model = tiny_models.build(kind)
    ids = torch.cat([tiny_models.document(101, seed) for seed in (0, 1)])
    first, second = teamwork(model, 2, checked(ids))
    assert torch.equal(first, second)
    assert float((first - naive(model, ids)).abs().max()) < 2e-5


@pytest.mark.parametrize("size", [1, 3, 4])
@pytest.mark.parametrize("length", [2, 7, 64])
def test_any_number_of_processes_shares_any_number_of_positions(size, length):
    """Also fewer positions than pieces."""
    model, ids = tiny.llama(), torch.tensor([each[:length] for each in tiny.documents(2, length)])
    for found in teamwork(model, size, lambda scorer: scorer.score(ids)):
        assert found.shape == (2, length - 1)
        assert float((found - naive(model, ids)).abs().max()) < 2e-5


@pytest.mark.parametrize("length", [2, 64, 101])
def test_two_processes_compare_predictions_as_one_does(length):
    """KL and top-1 agreement at every position, against stock full logits and softmax in fp64."""
    model, ids = tiny.llama(), torch.tensor([each[:length] for each in tiny.documents(2, length)])

    def both(model, states):
        first = states()
        with ropescale.patch(model, "linear:factor=4"):
            return first, states()

    def compared(scorer):
        return scorer.divergence(ids, *both(scorer.model, lambda: scorer.states(ids)))

    with torch.no_grad():
        one, other = both(model, lambda: model(input_ids=ids).logits[:, :-1].double())
    kl = (one.softmax(2) * (one.log_softmax(2) - other.log_softmax(2))).sum(2)
    same = (one.argmax(2) == other.argmax(2)).double()
    for found in teamwork(model, 2, compared):
        assert float((found.double() - torch.stack([kl, same])).abs().max()) < 2e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounding_in_half_precision_is_no_reason_to_refuse(dtype):
    model, ids = tiny.llama().to(dtype), torch.tensor(tiny.documents(1, 101))
    shared, _ = teamwork(model, 2, checked(ids))
    assert float((shared - naive(model, ids)).abs().mean()) < 2 * torch.finfo(dtype).eps


def test_rows_in_many_blocks_are_the_same_rows(monkeypatch):
    model, ids = tiny_models.build("gemma2"), tiny_models.document(101)
    monkeypatch.setitem(sequence._BLOCK_BYTES, "cpu", 10_000)
    found, _ = teamwork(model, 2, lambda scorer: scorer.score(ids))
    assert float((found - naive(model, ids)).abs().max()) < 2e-5


def test_pieces_are_dealt_so_that_a_causal_mask_costs_all_the_same():
    shards = [Shard(Threads(rank, 3), 100, torch.device("cpu")) for rank in range(3)]
    assert sorted(torch.cat([shard.positions for shard in shards]).tolist()) == list(range(102))
    assert {int((shard.positions + 1).sum()) for shard in shards} == {102 * 103 // 2 // 3}


def test_the_model_is_as_it_was_afterwards():
    model = tiny_models.build("gemma2")
    before = model.config.to_dict(), model.config._attn_implementation

    def work(scorer):
        scorer.score(tiny_models.document(20))
        return scorer.model.config.to_dict(), scorer.model.config._attn_implementation

    assert teamwork(model, 2, work) == [before, before]


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("lfm2", "off by .* nats per token"),  # convolutions
        ("mamba2", "off by .* nats per token"),
        ("bloom", "do not take it"),  # biases of its own
        ("deepseek_v32", "do not take it"),  # chooses keys by an index of its own
        ("opt", "no trunk apart from its head"),
    ],
)
def test_a_model_that_lets_positions_meet_in_another_way_is_refused_by_name(kind, why, tmp_path):
    model = by_coverage(kind, tmp_path)
    with pytest.raises(
        ConfigError, match=rf"{type(model).__name__} cannot be measured .*{why}.*; leave the option out"
    ):
        teamwork(model, 2, checked(IDS))


def test_a_class_that_counts_positions_from_nothing_is_known_by_its_code():
    """Llama 4 scales its queries by positions that it counts itself, from 8,192 on: no check would meet that."""
    from transformers.models.llama.modeling_llama import LlamaAttention
    from transformers.models.llama4.modeling_llama4 import Llama4TextAttention

    assert _counts_positions(Llama4TextAttention) and not _counts_positions(LlamaAttention)


def test_attention_that_is_not_known_is_refused():
    model = tiny.llama()
    model.config._attn_implementation_internal = "flex_attention"
    with pytest.raises(ConfigError, match=r"sdpa and eager.*flex"):
        ShardedScorer(model, Threads(0, 1))


def test_memory_that_is_short_in_one_of_several_processes_is_an_error(monkeypatch):
    """It must not try again alone: the others would wait for ever."""
    scorer = ShardedScorer(tiny.llama(), Threads(0, 1, (threading.Barrier(1), [None])))
    monkeypatch.setattr(scorer, "score", raising(torch.OutOfMemoryError("full")))
    executor = Executor(scorer, tiny.from_ids(tiny.documents(4, 40)), None, print)
    (batch,) = plan_pass([40] * 4, 40, None, False, 160).batches
    with pytest.raises(RunError, match=r"4 windows of 40 positions.*several processes"):
        executor.score(batch)


def test_processes_that_do_not_divide_into_teams_are_refused():
    with pytest.raises(DataError, match=r"multiple of 2 processes.* 3; .*torchrun"):
        World(0, 3, 0, launched=True).in_teams(2, "sequence_parallel=2")
    team = World(3, 4, 1, launched=True).in_teams(2, "sequence_parallel=2")
    assert (team.teams, team.writes, team.leads, str(team)) == (2, False, False, "4 processes in teams of 2")


def by_coverage(kind, folder):
    (folder / "config.json").write_text(json.dumps(coverage_models.tiny_config(kind)))
    return coverage_models.build(folder)


IDS = torch.randint(9, coverage_models.VOCABULARY, (2, 101), generator=torch.Generator().manual_seed(0))

NOT_SCORED = {"gemma4_assistant", "gemma4_unified_assistant", "musicgen", "musicgen_melody", "xmod"}
"""Types that are not fed token ids alone."""


@pytest.mark.slow
def test_every_model_that_transformers_has_is_measured_exactly_or_refused_by_name(tmp_path):
    exact, refused = [], {}
    for kind in sorted(set(coverage_models.TYPES) - NOT_SCORED):
        model = by_coverage(kind, tmp_path)
        try:
            found, _ = teamwork(model, 2, checked(IDS))
        except ConfigError as error:
            refused[kind] = str(error).startswith(f"{type(model).__name__} cannot be measured with sequence_parallel")
            continue
        assert float((found - naive(model, IDS)).abs().max()) < 2e-5, kind
        exact.append(kind)
    assert len(exact) == 99 and all(refused.values())
    known = "llama qwen2 qwen3 qwen3_moe mistral mixtral gemma gemma2 gemma3_text phi3 olmo2 deepseek_v3 glm4 gpt_oss"
    assert set(known.split()) <= set(exact)


# --- with real processes ---


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A Gemma 2 with a tokenizer of bytes on disk: softcaps, and windows of 16 positions in half of its layers."""
    return tiny.checkpoint(tmp_path_factory.mktemp("model"), tiny_models.build("gemma2", vocab_size=258))


def asked(model, texts, *words):
    schedules = ["--schedule", "yarn:factor=2", "--schedule", "dynamic:factor=2", "--layers", "all"]
    return [model, "--data", texts, "--lengths", "60,127", *schedules, "--batch-tokens", 300, *words]


@pytest.mark.slow
@pytest.mark.parametrize("words", [[], ["--stride", 50]])
def test_two_processes_agree_with_one_under_every_kind_of_schedule(model, texts, tmp_path, words):
    """Static ones, and one frozen at each length."""
    runs = [launch(1, *asked(model, texts, *words, "-o", tmp_path / "1"))]
    runs.append(launch(2, *asked(model, texts, *words, "--sequence-parallel", 2, "-o", tmp_path / "2")))
    runs.append(launch(4, *asked(model, texts, *words, "--sequence-parallel", 2, "-o", tmp_path / "4")))
    assert [run.returncode for run in runs] == [0, 0, 0], runs[-1].stderr
    assert "4 processes in teams of 2 measuring" in runs[2].stderr
    assert (tmp_path / "2" / "results.json").read_bytes() == (tmp_path / "4" / "results.json").read_bytes()
    assert len(assert_agree(tmp_path / "1", tmp_path / "2")) == 6


@pytest.mark.slow
def test_a_shared_window_is_kept_once_and_found_again(model, texts, tmp_path):
    words = asked(model, texts, "--sequence-parallel", 2, "-o", tmp_path)
    assert launch(2, *words).returncode == 0
    assert [path.name for path in tmp_path.glob("resume/*.sqlite")] == ["0.sqlite"]
    whole = (tmp_path / "results.json").read_bytes()
    with closing(sqlite3.connect(tmp_path / "resume" / "0.sqlite")) as store:  # as a kill may leave it
        store.execute("DELETE FROM records WHERE number = 0")
        store.commit()
    again = launch(4, *words)
    assert again.returncode == 0 and "resuming: " in again.stderr, again.stderr
    assert (tmp_path / "results.json").read_bytes() == whole


@pytest.mark.slow
def test_what_cannot_be_is_said_once(model, texts):
    done = launch(3, *asked(model, texts, "--sequence-parallel", 2))
    assert done.returncode and done.stderr.count("error: ") == 1
    assert "error: --sequence-parallel 2 needs a multiple of 2 processes, and there are 3" in done.stderr
