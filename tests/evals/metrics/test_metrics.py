"""A metric is one module and one line; its rows are computed once, written everywhere, and read back."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
from tiny import byte_tokenizer, documents, llama

from ropescale.errors import DataError
from ropescale.evals import Result, metrics, perplexity, retrieval
from ropescale.evals.metrics.base import Metric
from ropescale.evals.metrics.stored import Stored
from ropescale.evals.reporting.page import load, page_data

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


@dataclass(frozen=True)
class WorstRow:
    schedule: str
    length: int
    worst: float


class Worst(Metric[Stored, WorstRow]):
    """The largest loss of a token."""

    row, key, columns = WorstRow, "worst", {"worst_nll": "worst"}

    def reduce(self, stored):
        return [
            WorstRow(schedule, length, max(float(nll.max()) for nll in stored.losses(schedule, length)))
            for schedule, length in stored.read_from
        ]

    def to_markdown(self, stored):
        return [f"The worst loss is {max(row.worst for row in self.rows(stored)):.3f}."]


def test_a_metric_that_is_added_is_in_every_file_and_on_the_page(tmp_path, monkeypatch):
    every = (*metrics.METRICS, Worst())
    monkeypatch.setattr(Result, "metrics", every)
    monkeypatch.setattr("ropescale.evals.reporting.page.METRICS", every)
    out = tmp_path / "run"
    result = perplexity(llama(), documents(3, 130), LENGTHS, SCHEDULES, out=out)
    rows = Worst().rows(result)
    assert rows[0].worst == max(float(nll[:15].max()) for nll in result.passes[0].nll)
    assert json.loads((out / "results.json").read_text())["worst"] == [row.__dict__ for row in rows]
    header, first, *_ = (out / "results.csv").read_text().splitlines()
    assert header.endswith(",worst_nll") and first.endswith(f",{rows[0].worst}")
    assert f"The worst loss is {max(row.worst for row in rows):.3f}." in (out / "REPORT.md").read_text()
    assert Worst().rows(Result.load(out)) == rows
    assert page_data(load([out]))["series"][0]["worst"] == [row.__dict__ for row in rows[: len(LENGTHS)]]
