"""Models whose every NLL is known on paper, under any lengths, stride, BOS, batches, chunks and schedule."""

import math
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings, strategies as st
from tiny import contexts, documents, prefix_mean_llama, prefix_mean_nll

from ropescale.evals import perplexity

SIZE, BOS = 8, 5
HEAD = torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
TRAINED = 16  # so that a schedule that follows the length has other tables at most lengths
PREFIX_MEAN = prefix_mean_llama(HEAD, max_position_embeddings=TRAINED)

few = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

SETTINGS = {
    "sizes": st.lists(st.integers(0, 40), min_size=1, max_size=4),
    "lengths": st.lists(st.integers(2, 40), min_size=1, max_size=4, unique=True),
    "stride": st.none() | st.integers(1, 23),
    "bos": st.booleans(),
    "batch_tokens": st.integers(1, 200),
    "chunk": st.none() | st.integers(1, 30),
    "schedule": st.sampled_from(["as-is", "yarn:factor=4", "dynamic:factor=4"]),
}


@contextmanager
def chunks_of(chunk):
    """Every window is fed so many positions at a time, as if memory were short."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("ropescale.evals.scoring.memory.MemoryEstimate.chunk", lambda self, positions: chunk)
        yield


def scored(sizes, lengths, stride, bos):
    """The documents that are measured on, by their definition in the README."""
    wide = max(lengths) - bos
    assume(max(sizes) >= wide and (stride is None or stride < min(lengths)))
    ids = [each[:n] for each, n in zip(documents(len(sizes), 40, vocabulary=SIZE), sizes)]
    least = wide if stride is None else 2 - bos
    distinct = map(list, dict.fromkeys(map(tuple, ids)))
    return ids, [each for each in distinct if len(each) >= least]


def measured(model, ids, lengths, stride, bos, batch_tokens, chunk, schedule):
    """The result, and the rows of a schedule by length."""
    with chunks_of(chunk):
        how = {"stride": stride, "bos": BOS if bos else "no", "batch_tokens": batch_tokens, "short_context": False}
        result = perplexity(model, ids, lengths, [schedule], windows=1 if stride is None else None, **how)
    return result, {row.length: row for row in result.rows if row.schedule == schedule}


@few
@given(**SETTINGS)
def test_a_token_is_predicted_from_what_the_definition_says(sizes, lengths, stride, bos, batch_tokens, chunk, schedule):
    ids, kept = scored(sizes, lengths, stride, bos)
    result, rows = measured(PREFIX_MEAN, ids, lengths, stride, bos, batch_tokens, chunk, schedule)
    first = [BOS] if bos else []
    for length in lengths:
        exact = []
        for each in kept:
            seen = contexts(len(each), length, stride, bos)
            exact.append([prefix_mean_nll(HEAD, [*first, *(each[s] for s in past)], each[t]) for t, past in seen])
        flat = np.concatenate(exact)
        assert rows[length].tokens == len(flat) and rows[length].documents == len(kept)
        assert rows[length].nll == pytest.approx(math.fsum(flat) / len(flat), abs=1e-6)
        for run in result.passes:
            if run.lengths[-1] == length:
                assert [len(each) for each in run.nll] == [len(each) for each in exact]
                assert np.abs(np.concatenate(run.nll) - flat).max() < 1e-5
