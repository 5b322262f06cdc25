"""A metric is one module and one line; its rows are written everywhere, and read back."""

import json
from dataclasses import asdict, dataclass

from tiny import documents, llama

from ropescale.evals import Result, metrics, perplexity
from ropescale.evals.metrics.base import Metric
from ropescale.evals.metrics.stored import Stored
from ropescale.evals.reporting.page import page_data
from ropescale.evals.reporting.runs import load

LENGTHS = [16, 32]


@dataclass(frozen=True)
class WorstRow:
    schedule: str
    length: int
    worst: float


class Worst(Metric[Stored, WorstRow]):
    """The largest loss of a token."""

    row, key, columns = WorstRow, "worst", {"worst_nll": "worst"}

    def reduce(self, stored):
        read = ((each, max(float(nll.max()) for nll in stored.losses(*each))) for each in stored.read_from)
        return [WorstRow(*each, most) for each, most in read]

    def to_markdown(self, stored):
        return [f"The worst loss is {max(row.worst for row in self.rows(stored)):.3f}."]


def test_a_metric_that_is_added_is_in_every_file_and_on_the_page(tmp_path, monkeypatch):
    monkeypatch.setattr(Result, "metrics", (*metrics.METRICS, Worst()))
    result = perplexity(llama(), documents(3, 40), LENGTHS, ["yarn:factor=2"], out=tmp_path)
    rows = Worst().rows(result)
    assert rows[0].worst == max(float(nll[:15].max()) for nll in result.passes[0].nll)
    assert json.loads((tmp_path / "results.json").read_text())["worst"] == [asdict(row) for row in rows]
    header, first, *_ = (tmp_path / "results.csv").read_text().splitlines()
    assert header.endswith(",worst_nll") and first.endswith(f",{rows[0].worst}")
    assert f"The worst loss is {max(row.worst for row in rows):.3f}." in (tmp_path / "REPORT.md").read_text()
    assert Worst().rows(Result.load(tmp_path)) == rows
    assert page_data(load([tmp_path]))[tmp_path.name]["worst"] == [asdict(row) for row in rows]
