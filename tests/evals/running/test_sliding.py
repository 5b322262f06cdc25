"""Strided sliding windows, against closed forms and an independent loop over plain transformers."""

import math

import pytest
import torch
from tiny import contexts, documents, llama, naive_nll

from ropescale.evals import perplexity


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
    result = perplexity(llama(), [*documents(2, 40), documents(1, 10)[0]], [16], stride=8)
    assert (result.protocol["mode"], result.protocol["stride"]) == ("sliding", 8)
    line = result.to_markdown().splitlines()[-1]
    assert "perplexity in sliding windows of L positions, stride 8 (no BOS)" in line
    assert "; 3 documents, " in line and result.rows[-1].documents_at_length == 2
