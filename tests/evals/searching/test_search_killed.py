"""A search that is killed at random moments."""

import os
import random

import pytest
from forking import struck
from losses import records_in
from tiny import documents, llama

from ropescale.evals import search
from ropescale.evals.results.folder import read_results

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.slow, pytest.mark.long]

TEXT = documents(12, 300)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_search_killed_at_twenty_random_moments_ends_in_the_same_bytes(tmp_path):
    def run(folder):
        (tmp_path / folder).mkdir(exist_ok=True)
        search(llama(), TEXT, 128, out=tmp_path / folder / "factors.json", budget_tokens=128 * 150)

    def stored(folder):
        return records_in(tmp_path / folder / "factors-search")

    run("whole")
    most, moments = stored("whole"), random.Random(11)
    drawn = sorted(moments.uniform(0, most) for _ in range(20))
    strikes = [struck(lambda: run("parts"), lambda: stored("parts"), least) for least in drawn]
    run("parts")
    assert sum(strikes) >= 8  # what is finished is committed once a second
    for name in ("factors.json", "factors-search/results.csv"):
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    parts, whole = (read_results(tmp_path / folder / "factors-search") for folder in ("parts", "whole"))
    differing = {"files", "sha256"}  # the report names the schedule's file
    assert {key for key in whole if parts[key] != whole[key]} <= differing
