"""A metric is one module and one line; its rows are computed once, written everywhere, and read back."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from tiny import byte_tokenizer, documents, llama

from ropescale.errors import DataError
from ropescale.evals import Result, metrics, perplexity, retrieval

LENGTHS, SCHEDULES = [16, 32, 64, 128], ["yarn:factor=2", "dynamic:factor=4"]


@pytest.fixture
def run(tmp_path):
    result = perplexity(llama(), documents(3, 130), LENGTHS, SCHEDULES, out=tmp_path / "run", repeat_distance=20)
    return result, tmp_path / "run"


def test_one_evaluation_computes_the_rows_of_each_metric_once(tmp_path, monkeypatch):
    computed = Counter()
    for metric in metrics.METRICS:
        real = metric.reduce
        monkeypatch.setattr(
            metric, "reduce", lambda stored, real=real, row=metric.row: computed.update([row]) or real(stored)
        )
    result = perplexity(llama(), documents(3, 130), LENGTHS, SCHEDULES, out=tmp_path / "run")
    assert result.to_markdown() and result.to_dict() and result.to_csv() and result.by_position("as-is")
    assert computed == {metric.row: 1 for metric in metrics.METRICS}


def test_what_is_loaded_is_what_was_saved(run):
    result, out = run
    loaded = Result.load(out)
    for one, other in zip(loaded.passes, result.passes, strict=True):
        assert (one.schedule, one.lengths, one.table_sha256) == (other.schedule, other.lengths, other.table_sha256)
        assert all(np.array_equal(a, b) for a, b in zip(one.nll, other.nll, strict=True))
    assert json.loads(json.dumps(loaded.to_dict())) == json.loads(json.dumps(result.to_dict()))
    assert loaded.by_position("as-is") == result.by_position("as-is")
    assert loaded.to_markdown() == result.to_markdown() and loaded.to_csv() == result.to_csv()


def test_a_folder_of_another_kind_or_without_results_is_not_loaded(tmp_path):
    with pytest.raises(DataError, match=r"nowhere does not exist; give a folder"):
        Result.load(tmp_path / "nowhere")
    model, tokenizer = llama(vocab_size=257), byte_tokenizer(limit=400)
    retrieval(model, tokenizer, [200], [0, 1], [], trials=1).save(tmp_path / "asked")
    with pytest.raises(DataError, match=r"asked holds a retrieval run, not a perplexity run"):
        Result.load(tmp_path / "asked")
