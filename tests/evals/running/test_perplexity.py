"""Perplexity against closed forms and against an independent loop over plain transformers."""

import math

import numpy as np
import pytest
import torch
from tiny import byte_tokenizer, contexts, documents, llama, naive_nll

import ropescale
from ropescale.errors import DataError, RunError, ScheduleError
from ropescale.evals import perplexity
from ropescale.schedules import Yarn

LENGTHS = [16, 50, 64, 100, 130]
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}


def by_length(result, schedule="as-is"):
    return {row.length: row for row in result.rows if row.schedule == schedule}


def naive_ppl(model, ids, length):
    """Its own forward pass per document and length, a mean over all tokens in fp64."""
    losses = [loss for each in ids for loss in naive_nll(model, each[:length])]
    return math.exp(math.fsum(losses) / len(losses))


@pytest.mark.parametrize("batch_tokens", [1, 300, 8192])
def test_one_pass_equals_a_naive_pass_per_length(batch_tokens):
    model, ids = llama(), documents(5, 130)
    result = perplexity(model, ids, LENGTHS, batch_tokens=batch_tokens)
    for length, row in by_length(result).items():
        assert row.ppl == pytest.approx(naive_ppl(model, ids, length), rel=2e-6)
        assert (row.documents, row.tokens, row.forward_passes) == (5, 5 * (length - 1), 5)
    stored = np.stack(result.passes[0].nll)
    naive = np.array([naive_nll(model, each[:130]) for each in ids])
    assert np.abs(stored - naive).mean() < 1e-6 * naive.mean() and np.abs(stored - naive).max() < 1e-4
    assert stored.dtype == np.float32


def test_schedules_equal_stock_transformers_built_with_them_whose_tables_may_follow_the_length():
    yarn = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
    ids = documents(3, 130)
    result = perplexity(llama(), ids, LENGTHS, ["yarn:factor=4", "dynamic:factor=4"])
    stock = llama(rope_parameters=yarn, max_position_embeddings=256)
    for length, row in by_length(result, "yarn:factor=4").items():
        assert row.ppl == pytest.approx(naive_ppl(stock, ids, length), rel=2e-6)
    rows = by_length(result, "dynamic:factor=4")
    for length, row in rows.items():  # a fresh stock model per length: it keeps state otherwise
        assert row.ppl == pytest.approx(naive_ppl(llama(rope_parameters=DYNAMIC), ids, length), rel=2e-6)
    assert rows[16].table_sha256 == rows[50].table_sha256 == rows[64].table_sha256  # one pass for all up to 64
    assert len({rows[n].table_sha256 for n in (64, 100, 130)}) == 3
    passes = [run.lengths for run in result.passes if run.schedule.startswith("dynamic")]
    assert passes == [(16, 50, 64), (100,), (130,)]


@pytest.mark.parametrize("order", [1, -1])
def test_state_never_leaks_between_documents_of_a_model_that_keeps_state(order):
    ids = documents(3, 130)[::order]
    model = llama(rope_parameters=DYNAMIC)
    with torch.no_grad():
        model(torch.tensor([documents(1, 200, seed=5)[0]]))  # a long document leaves its tables behind
    for length, row in by_length(perplexity(model, ids, LENGTHS)).items():
        assert row.ppl == pytest.approx(naive_ppl(llama(rope_parameters=DYNAMIC), ids, length), rel=2e-6)


def test_longrope_takes_two_passes():
    factors = {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.0, 1.5, 3.0, 4.0]}
    scaling = {"rope_type": "longrope", "rope_theta": 10000.0, "factor": 4.0, **factors}
    changes = {"rope_parameters": scaling | {"original_max_position_embeddings": 64}, "max_position_embeddings": 256}
    ids = documents(2, 130)
    result = perplexity(llama(**changes), ids, LENGTHS)
    assert [run.lengths for run in result.passes] == [(16, 50, 64), (100, 130)]
    for length, row in by_length(result).items():
        assert row.ppl == pytest.approx(naive_ppl(llama(**changes), ids, length), rel=2e-6)


@pytest.mark.parametrize("spec", ["yarn:factor=4", "dynamic:factor=4"])
@pytest.mark.parametrize("asked", [[], "yarn:factor=4", ["dynamic:factor=4", "base"]])
def test_a_patched_model_is_measured_without_its_patch_and_with_it(spec, asked):
    model, ids = llama(), documents(2, 130)
    apart = perplexity(model, ids, LENGTHS, [spec])
    with ropescale.patch(model, spec):
        probe = torch.tensor([ids[0]])
        before, config = model(probe).logits, model.config.to_dict()
        within = perplexity(model, ids, LENGTHS, asked)
        assert torch.equal(model(probe).logits, before) and model.config.to_dict() == config
        assert ropescale.verify(model)
    assert within.model == apart.model | {"as_is": "the model without its patch"}
    assert set(within.schedules) >= {"as-is", spec}
    for schedule in ("as-is", spec):
        for length in LENGTHS:
            one, other = by_length(within, schedule)[length], by_length(apart, schedule)[length]
            assert (one.ppl, one.table_sha256) == (pytest.approx(other.ppl, rel=1e-6), other.table_sha256)


def test_a_patch_frozen_at_a_length_is_measured_as_it_is_frozen():
    model, ids = llama(), documents(2, 130)
    with ropescale.patch(model, "dynamic:factor=4", length=100):
        result = perplexity(model, ids, LENGTHS)
    assert result.schedules == ["as-is", "dynamic:factor=4 at 100 tokens"]
    frozen = by_length(perplexity(model, ids, [100], ["dynamic:factor=4"]), "dynamic:factor=4")[100].table_sha256
    assert {row.table_sha256 for row in result.rows if row.schedule != "as-is"} == {frozen}


def test_the_model_is_left_bit_for_bit_as_it_was():
    model, ids = llama(), documents(2, 130)
    probe = torch.tensor([ids[0]])
    before = model.eval()(probe).logits
    model.train()
    perplexity(model, ids, LENGTHS, ["yarn:factor=4", "dynamic:factor=4"])
    assert all(module.training for module in model.modules())
    assert torch.equal(model.eval()(probe).logits, before)
    assert not any(buffer.is_inference() for buffer in model.buffers())


def test_another_baseline_runs_too_and_is_what_the_others_are_compared_with():
    result = perplexity(llama(), documents(2, 130), [100], ["yarn:factor=2", Yarn(2.0)], baseline="linear:factor=2")
    assert result.schedules == ["as-is", "yarn:factor=2", "linear:factor=2"]
    assert {pair.baseline for pair in result.paired} == {"linear:factor=2"}
    assert {pair.schedule for pair in result.paired} == {"as-is", "yarn:factor=2"}


def test_the_same_documents_are_used_at_every_length():
    ids = [*documents(3, 130), [1] * 40, []]
    result = perplexity(llama(), ids, [16, 130])
    assert [row.documents for row in result.rows] == [3, 3]
    assert result.data["skipped"] == {"too_short": 1, "empty": 1}
    assert result.data["tokens"] == 3 * 129  # that are scored: nothing is before the first
    assert perplexity(llama(), ids, [130], bos=3).data["tokens"] == 3 * 129  # BOS is none of them


def test_texts_are_encoded_and_begun_by_bos_once():
    model, tokenizer = llama(vocab_size=257), byte_tokenizer()
    text = "once upon a time there was a small tokenizer, " * 4
    result = perplexity(model, [text], [65], tokenizer=tokenizer, windows=1)
    ids = [256, *tokenizer(text, add_special_tokens=False).input_ids]
    assert result.rows[0].ppl == pytest.approx(naive_ppl(model, [ids], 65), rel=2e-6)
    # One byte per token, and the 64 scored ones are exactly the first 64 bytes.
    assert result.rows[0].bits_per_byte == pytest.approx(result.rows[0].nll / math.log(2))


def test_bits_per_byte_leaves_out_the_token_that_is_not_scored():
    model, tokenizer = llama(vocab_size=257), byte_tokenizer()
    row = perplexity(model, ["€" * 50], [91], tokenizer=tokenizer, bos="no").rows[0]
    # Tokens 1..90 of 91 are scored; token 0 ends with its whole character (3 bytes), token 90 with the 31st (93).
    assert row.bits_per_byte == pytest.approx(90 * row.nll / math.log(2) / (93 - 3))


def test_what_cannot_be_measured_is_refused_before_the_first_forward(monkeypatch):
    model = llama()
    monkeypatch.setattr(type(model), "forward", None)
    with pytest.raises(DataError, match="document 1 has token id 61 at position 7"):
        perplexity(model, [[1] * 40, [1] * 7 + [61] * 40], [32])
    with pytest.raises(ScheduleError, match="did you mean 'yarn'"):
        perplexity(model, documents(1, 130), [64], ["yran:factor=2"])
    for name in ("as-is", "truncation"):
        own = type(name, (), {"__call__": lambda _, *given: Yarn(factor=2)(*given)})()
        with pytest.raises(DataError, match=f"two different schedules are both called '{name}'; give them diff"):
            perplexity(model, documents(1, 130), [64], [own])
    with pytest.raises(ScheduleError, match="factor is an empty list"):
        perplexity(model, documents(1, 130), [64], ["yarn"], factor=[])
    with pytest.raises(DataError, match="no metric has an option 'foo'; there are repeat_distance, key_spans"):
        perplexity(model, documents(1, 130), [64], metric_options={"foo": 1})
    for option in ("batch_tokens", "logits_bytes", "max_docs"):
        with pytest.raises(DataError, match=f"{option} must be 1 or more"):
            perplexity(model, documents(1, 130), [64], **{option: 0})


def test_nan_logits_stop_the_run_and_name_the_place():
    def break_one(module, inputs, output):
        if len(output) == 2:  # the batch of both documents
            output[1, 40] = torch.nan

    model = llama()
    model.model.norm.register_forward_hook(break_one)
    with pytest.raises(RunError, match="NaN or infinite in document 1 at position 41; try"):
        perplexity(model, documents(2, 100), [100])


# --- strided sliding windows ---


def naive_sliding(model, ids, length, stride, bos):
    """One forward of plain transformers per token, with exactly the context that the definition gives it."""
    first = [] if bos is None else [bos]
    for t, seen in contexts(len(ids), length, stride, bos is not None):
        yield naive_nll(model, [*first, *(ids[s] for s in seen), ids[t]])[-1]


def test_every_length_has_its_own_windows_and_its_own_frozen_tables():
    scaling = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
    ids = [documents(1, 80)[0], documents(1, 40, seed=1)[0]]
    result = perplexity(llama(), ids, [20, 70], ["dynamic:factor=4", "linear:factor=1"], stride=15)
    assert [run.lengths for run in result.passes] == 3 * [(20,), (70,)]
    rows = {(row.schedule, row.length): row for row in result.rows}
    for length in (20, 70):
        # Every window under the tables of the length, the last one of a document, which is shorter, too.
        stock = llama(rope_parameters=scaling)
        with torch.no_grad():
            stock(torch.tensor([documents(1, length, seed=9)[0]]))
        stock.model.rotary_emb.rope_type = "default"  # stays as that forward left it
        naive = [nll for each in ids for nll in naive_sliding(stock, each, length, 15, None)]
        assert rows["dynamic:factor=4", length].nll == pytest.approx(math.fsum(naive) / len(naive), abs=2e-6)
        assert rows["linear:factor=1", length].forward_passes == 0  # the tables of as-is
        assert rows["linear:factor=1", length].nll == rows["as-is", length].nll
    assert [rows["as-is", n].documents_at_length for n in (20, 70)] == [2, 1]
    assert rows["as-is", 70].forward_passes == 2 + 1


def test_the_protocol_says_sliding_and_names_the_stride():
    with pytest.raises(DataError, match="stride True is not a whole number of tokens"):
        perplexity(llama(), documents(1, 40), [16], stride=True)
    result = perplexity(llama(), [*documents(2, 40), documents(1, 10)[0]], [16], stride=8)
    assert (result.protocol["mode"], result.protocol["stride"]) == ("sliding", 8)
    line = result.to_markdown().splitlines()[-1]
    assert "perplexity in sliding windows of L positions, stride 8 (no BOS)" in line
    assert "; 3 documents, " in line and result.rows[-1].documents_at_length == 2
