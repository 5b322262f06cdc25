"""The sentences of a search are what the rows of its table say, whatever the losses are."""

from __future__ import annotations

import random
import re

import pytest

from ropescale.evals.metrics.cells import SENTENCE, change_cell
from ropescale.evals.searching.metrics import CHANGES, FINDING, ChangeRow, Searched, Trial, verdict

START = "yarn:factor=8"
OWN, CUT = ("as-is", 2048, -2.0, -2.1, -1.9), ("truncation", 2048, 0.09, 0.04, 0.14)


def said(*changes, unmoved=False, kept=False, held="text"):
    rows = [ChangeRow("found", *each, interval=None) for each in changes]
    return verdict(rows, 2048, 12, unmoved=unmoved, kept=kept, held=held)


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        (
            [(START, 256, -0.08, -0.1, -0.06), (START, 2048, -0.05, -0.06, -0.04), OWN, CUT],
            "At 2,048 tokens, on 12 documents that chose nothing, the found schedule is better than yarn:factor=8 "
            "(-0.050 ± 0.010 nats per token). It is better than as-is (-2.000 ± 0.100) and worse than "
            "truncation (+0.090 ± 0.050). Use truncation.",
        ),
        (
            [(START, 2048, -0.05, -0.11, 0.01), OWN],
            "At 2,048 tokens, on 12 documents that chose nothing, the found schedule is not significantly different "
            "from yarn:factor=8 (-0.050 ± 0.060 nats per token). It is better than as-is (-2.000 ± 0.100). "
            "Use yarn:factor=8.",
        ),
        (
            [
                (START, 2048, -0.05, None, None),
                ("as-is", 2048, -2.0, None, None),
                ("truncation", 2048, 0.1, None, None),
            ],
            "Not proved: the schedule was chosen on the documents that measure it (nats at 2,048: "
            "-0.050 against yarn:factor=8, -2.000 against as-is, +0.100 against truncation). Give 16 "
            "documents of 2,048 tokens or more.",
        ),
    ],
)
def test_the_intervals_at_the_target_decide(changes, wanted):
    assert said(*changes) == wanted


def test_a_search_that_found_nothing_says_so_and_how_the_start_does():
    assert said((START, 2048, 0.0, 0.0, 0.0), OWN, CUT, unmoved=True) == (
        "No check beat the start, yarn:factor=8: nothing was gained. At 2,048 tokens, on 12 documents that "
        "chose nothing, it is better than as-is (-2.000 ± 0.100) and worse than truncation (+0.090 ± "
        "0.050). Use truncation."
    )


def test_of_prompts_it_speaks_of_answers_and_where_they_do_not_decide_of_more():
    assert said((START, 2048, -0.46, -1.64, 0.28), held="prompts") == (
        "At 2,048 tokens, on 12 sets of prompts that chose nothing, the found schedule is not significantly different "
        "from yarn:factor=8 (-0.460 (-1.640 to +0.280) nats per token of an answer). Test with "
        "`ropescale retrieval`; until then use yarn:factor=8."
    )


def test_where_short_text_is_kept_the_start_is_no_way_out():
    for low, high in ((-0.1, 0.1), (0.1, 0.3)):
        assert "Use" not in said((START, 2048, 0.0, low, high), OWN, kept=True)


# --- tables at random ---


def table(draw, documents, proved=True, skewed=False, gain=0.0):
    """A search whose losses differ between documents at random, and between its schedules by ``gain`` and noise."""
    names = [f"document {number}" for number in range(documents)]
    shared = [draw.gauss(3, 0.5) for _ in names]

    def noise():
        return draw.expovariate(1) - 1 if skewed else draw.gauss(0, 1)

    def curve(shift):
        return {n: [one + shift + 0.1 * noise() for one in shared] for n in (256, 2048)}

    shifts = [draw.uniform(-gain, gain) for _ in range(4)]
    curves = dict(zip(("as-is", START, "found", "truncation"), map(curve, shifts), strict=True))
    del curves["truncation"][256]
    checks = [Trial(1, (0.0,), 1.0), Trial(2, (1.0,), 0.9)]
    return Searched(
        model={"vocabulary": 10**6}, data={}, protocol={}, versions={}, start=START, spec="yarn:factor=9",
        lengths=(256, 2048), names=names, proved=proved, checks=checks, found=checks[1], steps=[], tables={}, spent=1,
        curves=curves, beside=1,
    )  # fmt: skip


def check_table(stored):
    """Compares the sentences of a search with its rows; returns what they conclude of each other schedule."""
    text, rows = FINDING.rows(stored)[0].verdict, [row for row in CHANGES.rows(stored) if row.length == 2048]
    found = {}
    for row in rows:
        name = re.escape(row.baseline)
        claims = re.findall(rf"(better than|worse than|not significantly different from) {name}(?!\w)", text)
        if not stored.proved:
            assert not claims and "Not proved" in text and "Use" not in text and row.low is row.high is None
            continue
        (found[row.baseline],) = claims
        wanted = "better than" if row.high < 0 else "worse than" if row.low > 0 else "not significantly different from"
        assert found[row.baseline] == wanted, text
        assert change_cell(row.change, SENTENCE) in text
        if f"Use {row.baseline}." in text:
            assert wanted != "better than"
    assert all(len(each) <= 200 for each in re.split(r"(?<=[.]) (?=[A-Z])", text)), text
    return found


@pytest.mark.parametrize("documents", [1, 2, 9, 10, 30])
def test_no_sentence_contradicts_its_row(documents):
    draw, proved = random.Random(documents), documents >= 10
    for number in range(40):
        check_table(table(draw, documents, proved, skewed=number % 2 == 0, gain=0.1 * (number % 5)))


@pytest.mark.slow
@pytest.mark.parametrize(("skewed", "most"), [(False, 0.06), (True, 0.08)])
def test_where_nothing_differs_few_tables_tell_anything_apart(skewed, most):
    draw = random.Random(7)
    tables = [check_table(table(draw, draw.randint(10, 50), skewed=skewed)) for _ in range(5000)]
    assert sum({*found.values()} != {"not significantly different from"} for found in tables) <= most * len(tables)
