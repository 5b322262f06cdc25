"""The sentences of a search say what its intervals do, whatever the losses are."""

import random
import re

import pytest

from ropescale.evals.metrics.cells import percent
from ropescale.evals.searching.metrics import verdict
from ropescale.evals.statistics.intervals import Estimate

START = "yarn:factor=8"
OWN, CUT = ("as-is", -2.0, -2.1, -1.9), ("truncation", 0.09, 0.04, 0.14)


def said(*changes, unmoved=False):
    found = {name: Estimate(*bounds) for name, *bounds in changes}
    return " ".join(verdict(found, [256, 2048], 12, unmoved=unmoved))


VERDICTS = [
    (
        [(START, -0.05, -0.06, -0.04), OWN, CUT],
        "At 2,048 tokens, on 12 documents not used to search, the found schedule is better than yarn:factor=8, "
        "where the search started: -4.9% ± 1.0% of perplexity. It is better than as-is: -86.5% ± 1.4%, and worse "
        "than truncation to the last 256 tokens: +9.4% ± 5.5%. Use truncation.",
    ),
    (
        [(START, -0.05, -0.11, 0.01), OWN],
        "At 2,048 tokens, on 12 documents not used to search, the found schedule is undecided against "
        "yarn:factor=8, where the search started: -4.9% ± 5.7% of perplexity. It is better than as-is: -86.5% ± "
        "1.4%. Use yarn:factor=8.",
    ),
    (
        [(START, -0.05, None, None), ("as-is", -2.0, None, None), ("truncation", 0.1, None, None)],
        "Not proved at 2,048 tokens, because the documents that measure the schedule also chose it: -4.9% against "
        "yarn:factor=8, -86.5% against as-is, +10.5% against truncation. Give 16 documents of 2,048 tokens or "
        "more.",
    ),
]


@pytest.mark.parametrize(("changes", "wanted"), VERDICTS)
def test_the_intervals_at_the_target_decide(changes, wanted):
    assert said(*changes) == wanted


def test_a_search_that_found_nothing_says_so_and_how_the_start_does():
    assert said((START, 0.0, 0.0, 0.0), OWN, CUT, unmoved=True) == (
        "The search gained nothing over its start, yarn:factor=8. At 2,048 tokens, on 12 documents not used to "
        "search, it is better than as-is: -86.5% ± 1.4%, and worse than truncation to the last 256 tokens: +9.4% ± "
        "5.5%. Use truncation."
    )


def test_no_sentence_contradicts_its_interval():
    draw = random.Random(7)
    for _ in range(300):
        changes = []
        for name in (START, "as-is", "truncation"):
            mean, half = draw.gauss(0, 0.1), draw.expovariate(10)
            changes.append((name, mean, mean - half * draw.uniform(0.5, 2), mean + half))
        text = said(*changes)
        for name, mean, low, high in changes:
            claims = rf"(better than|worse than|undecided against) {re.escape(name)}(?!\w)"
            wanted = "better than" if high < 0 else "worse than" if low > 0 else "undecided against"
            assert re.findall(claims, text) == [wanted], text
            assert percent(Estimate(mean, low, high)) in text
            assert f"use {name}." not in text.lower() or wanted != "better than"
        assert all(len(each) <= 200 for each in re.split(r"(?<=[.]) (?=[A-Z])", text)), text
