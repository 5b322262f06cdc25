"""A recommendation that is killed, and one that several processes share."""

import os
import random

import pytest
from forking import struck
from launching import launch
from losses import records_in
from tiny import documents, llama

from ropescale.evals import recommend

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.slow, pytest.mark.long]

TARGET = 128


def run(out):
    recommend(llama(), documents(12, TARGET + 4), TARGET, out=out, batch_tokens=256, search=True, search_tokens=10_000)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_recommendation_killed_at_twenty_random_moments_ends_in_the_same_bytes(tmp_path):
    run(tmp_path / "whole")
    most, moments = records_in(tmp_path / "whole"), random.Random(7)
    for least in sorted(moments.uniform(0, most) for _ in range(20)):
        struck(lambda: run(tmp_path / "parts"), lambda: records_in(tmp_path / "parts"), least)
    run(tmp_path / "parts")
    for name in ("results.json", "results.csv", "finalists.csv", "REPORT.md"):
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


def test_two_processes_share_a_recommendation_and_write_the_same_bytes(checkpoint, texts, tmp_path):
    words = [checkpoint, "--target-length", TARGET, "--data", texts, "--batch-tokens", 256, "-o"]
    runs = [launch(n, *words, tmp_path / str(n), command="recommend") for n in (1, 2)]
    assert [each.returncode for each in runs] == [0, 0], runs[-1].stderr
    for name in ("results.json", "results.csv", "finalists.csv"):
        assert len({(tmp_path / str(n) / name).read_bytes() for n in (1, 2)}) == 1, name
