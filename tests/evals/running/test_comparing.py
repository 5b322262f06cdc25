"""The short-context cost: KL divergence and top-1 agreement, against full logits in fp64 and plain loops."""

import json
from functools import partial

import numpy as np
import pytest
import tiny_models
import torch
from losses import tensors
from tiny import documents, llama

import ropescale
from ropescale.evals.metrics.cells import around
from ropescale.evals.scoring.executor import Executor
from ropescale.evals.scoring.scorer import Scorer, divergence

perplexity = partial(ropescale.evals.perplexity, windows=1)  # so that a document is one window

IDS = documents(4, 140)
SCHEDULES = ["linear:factor=4", "yarn:factor=4"]


def naive(model, schedule, windows, scored):
    """Per window, ``(KL(as it is || schedule), same top-1)`` for its last tokens, as many as ``scored`` says.

    Stock forward passes with full logits, softmax in fp64.
    """
    found = []
    for ids, count in zip(windows, scored, strict=True):
        plain = logits(model, ids)
        with ropescale.patch(model, schedule, length=len(ids)):
            changed = logits(model, ids)
        same = plain.argmax(1) == changed.argmax(1)
        found.append([*zip(kl(plain, changed)[:-1].tolist(), same[:-1].tolist(), strict=True)][-count:])
    return found


def logits(model, ids):
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids])).logits[0].double()


def kl(a, b):
    p, q = torch.softmax(a, 1), torch.softmax(b, 1)
    return (p * (p.log() - q.log())).sum(1)


def at(result, schedule, length):
    (pair,) = [each for each in result.paired if (each.schedule, each.length) == (schedule, length)]
    return pair


def assert_is(pair, expected):
    """The figures are the means over the tokens of all windows."""
    tokens = [token for each in expected for token in each]
    assert pair.kl == pytest.approx(np.mean([k for k, _ in tokens]), abs=1e-6)
    assert pair.top1 == pytest.approx(np.mean([s for _, s in tokens]), abs=1e-12)


SIZES = {"linear:factor=4": 2**20, "yarn:factor=4": 1, "dynamic:factor=4": 2**20}


@pytest.mark.parametrize(("schedule", "logits_bytes"), SIZES.items())
def test_kl_and_agreement_are_those_of_a_naive_loop_over_full_logits(schedule, logits_bytes):
    """Also where a block of logits is a single row. At 80, beyond the trained length of dynamic."""
    model = llama(max_position_embeddings=80 if "dynamic" not in schedule else 64)
    lengths = [32, 80, 128] if "dynamic" not in schedule else [32, 64, 128]
    result = perplexity(model, IDS, lengths, [schedule], logits_bytes=logits_bytes)
    short = lengths[1]
    expected = naive(model, schedule, [ids[:short] for ids in IDS], [short - 1] * 4)
    assert_is(at(result, schedule, short), expected)
    assert at(result, schedule, 128).kl is None
    assert_is(at(result, schedule, 32), naive(model, schedule, [ids[:32] for ids in IDS], [31] * 4))
    for ours, theirs in zip(result.divergences[0].kl, expected, strict=True):
        assert ours.tolist() == pytest.approx([k for k, _ in theirs], abs=2e-5)


def test_in_sliding_windows_each_token_is_compared_once_in_the_window_that_scores_it():
    model, ids = llama(), IDS[:2]
    result = perplexity(model, ids, [32, 64, 128], SCHEDULES[:1], stride=20, windows=None)
    windows = [(d[s : s + 64], 63 if s == 0 else min(64, len(d) - s) - 44) for d in ids for s in (0, 20, 40, 60, 80)]
    windows = [(part, count) for part, count in windows if count > 0]
    expected = naive(model, SCHEDULES[0], [part for part, _ in windows], [count for _, count in windows])
    assert sum(map(len, expected)) == sum(map(len, ids)) - 2
    assert_is(at(result, SCHEDULES[0], 64), expected)


def test_a_shorter_length_is_read_from_the_comparison_only_where_its_tables_were_the_same():
    """Tables that follow the length, by a schedule of ours: at 32 they are others than at 64."""
    from dataclasses import dataclass

    from ropescale import Frequencies

    @dataclass(frozen=True)
    class Following:
        """Every pair slowed by the length."""

        length_dependent = True

        def __call__(self, rope, length):
            return Frequencies([f * 32 / length for f in rope.inv_freq()])

    result = perplexity(llama(), IDS, [32, 64], [Following(), SCHEDULES[0]])
    known = {(pair.schedule == SCHEDULES[0], pair.length): pair.kl is not None for pair in result.paired}
    assert known == {(False, 32): False, (False, 64): True, (True, 32): True, (True, 64): True}


def test_the_closed_form_of_two_bernoullis():
    a, b = torch.tensor([[0.75, 0.25]]).log(), torch.tensor([[0.5, 0.5], [0.25, 0.75]]).log()
    kl, same = divergence(a.expand(2, 2), b)
    assert kl.tolist() == pytest.approx([0.75 * np.log(1.5) + 0.25 * np.log(0.5), 0.5 * np.log(3)])
    assert same.tolist() == [True, False]


def test_tokens_that_neither_can_give_add_nothing():
    never = float("-inf")
    one, other = torch.tensor([[0.0, 0.0, never]]), torch.tensor([[0.0, 1.0, never]])
    found = divergence(one, other)[0]
    assert float(found) == pytest.approx(-np.log(2) - (0 + 1) / 2 + np.log(1 + np.e), abs=1e-6)


def test_the_baseline_runs_once_for_all_schedules(monkeypatch):
    """Windows that go through the trunk: 4 for the baseline and 4 for each schedule."""
    rows: list[int] = []
    states, score = Scorer.states, Scorer.score
    monkeypatch.setattr(Scorer, "states", lambda self, *given: rows.append(len(given[0])) or states(self, *given))
    monkeypatch.setattr(Scorer, "score", lambda self, ids, chunk: rows.append(-len(ids)) or score(self, ids, chunk))
    result = perplexity(llama(), IDS, [64, 128], [*SCHEDULES, "linear:factor=4.0", "base"], batch_tokens=64)
    assert len(result.divergences) == 3 and sum(rows) == 12
    same = at(result, "base", 64)  # the baseline's own tables
    assert (same.kl, same.top1) == (0.0, 1.0)


def test_it_can_be_left_out_and_is_not_known_beyond_the_trained_length():
    left_out = perplexity(llama(), IDS, [64, 128], SCHEDULES[:1], short_context=False)
    assert left_out.divergences == [] and left_out.paired[0].kl is None
    assert "Short-context" not in left_out.to_markdown() and "| linear:factor=4 | " in left_out.to_markdown()
    beyond = perplexity(llama(), IDS, [65, 128], SCHEDULES[:1])
    assert beyond.divergences == []
    assert "no length up to the trained 64 was measured" in beyond.to_markdown()


def test_windows_fed_in_chunks_and_models_scored_whole_give_the_same_numbers(monkeypatch):
    expected = perplexity(llama(), IDS, [64], SCHEDULES)
    chunk, check = lambda self, batch: 10, lambda self, ids: setattr(self, "split", False)
    for target, name, instead in ((Executor, "_estimated_chunk", chunk), (Scorer, "check", check)):
        with monkeypatch.context() as patched:
            patched.setattr(target, name, instead)
            found = perplexity(llama(), IDS, [64], SCHEDULES)
        for ours, theirs in zip(found.paired, expected.paired, strict=True):
            assert ours.kl == pytest.approx(theirs.kl, abs=1e-5)
            assert ours.top1 == theirs.top1


def test_markdown_csv_and_files_have_them(tmp_path):
    result = perplexity(llama(), documents(5, 140), [32, 64, 128], SCHEDULES, truncation=False)
    out = result.save(tmp_path / "out")
    pair = at(result, SCHEDULES[1], 64)
    text = result.to_markdown()
    assert "Short-context cost against as-is, trained at 64 tokens (5 documents, 5 windows):" in text
    (line,) = [line for line in text.split("Short-context")[1].splitlines() if line.startswith("| yarn:factor=4")]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[1] == f"{pair.delta_nll:+.4f}{around(pair.delta_nll, pair.low, pair.high, sign='+')}"
    assert cells[2] == f"{pair.kl:.4f}{around(pair.kl, pair.kl_low, pair.kl_high)}"
    share, *bounds = (100 * each for each in (pair.top1, pair.top1_low, pair.top1_high))
    assert cells[3] == f"{share:.2f}%{around(share, *bounds, 2, unit='%')}"
    assert [p["kl"] for p in json.loads((out / "results.json").read_text())["paired"]][4] == pair.kl
    tokens = tensors(out)[f"{SCHEDULES[1]} @ {pair.length} kl"]
    assert tokens.mean(dtype=np.float64) == pytest.approx(pair.kl, abs=1e-12)
    assert f",{pair.kl},{pair.kl_low}," in result.to_csv()


def test_the_logits_of_gemma2_are_compared_with_their_softcap():
    model = tiny_models.build("gemma2", final_logit_softcapping=2.0)
    result = perplexity(model, IDS, [64], ["linear:factor=4"])
    assert_is(result.paired[0], naive(model, "linear:factor=4", [ids[:64] for ids in IDS], [63] * 4))
    assert result.paired[0].kl > 1e-3
