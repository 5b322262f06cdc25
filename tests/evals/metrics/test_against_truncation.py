"""Where reading further than truncation pays off, and how it is said."""

import numpy as np
import pytest
from tiny import documents, llama

from ropescale.evals import perplexity
from ropescale.evals.metrics.against_truncation import TruncationRow, verdict

Bounds = tuple[float, "float | None", "float | None"]
BETTER, OPEN, WORSE = (-0.2, -0.3, -0.1), (-0.1, -0.3, 0.1), (0.1, 0.05, 0.15)


def row(schedule, length, change, far=None, texts=12):
    """A row with these changes, each with its bounds; far repeats are in two documents fewer."""
    mean, low, high = change
    names = ("far_delta_nll", "far_low", "far_high", "far_tokens", "far_documents")
    others = {} if far is None else dict(zip(names, (*far, 9, texts - 2), strict=True))
    about = {"documents": texts, "comparisons": 6}
    return TruncationRow(
        schedule, length, 64, 4, 640, 100, 2 + mean, 2.0, mean, low, high, "documents", **others, **about
    )


def test_it_pays_off_at_every_length_at_which_any_schedule_is_better():
    """The schedule that is best at 512 is open everywhere; another one is better than truncation at 128 and at 256."""
    rows = [row("yarn:8", length, OPEN) for length in (128, 256, 512)]
    rows += [row("yarn:2", 128, BETTER), row("yarn:2", 256, BETTER), row("yarn:2", 512, WORSE)]
    said = "Reading further back than the last 64 tokens pays off at 128, 256 tokens, with at least one schedule."
    assert verdict(rows) == [said]


def test_far_repeats_have_a_sentence_of_their_own():
    rows = [row("near", 256, WORSE, OPEN), row("wide", 256, OPEN, (-0.9, -1.0, -0.8))]
    assert verdict(rows) == [
        "There is no evidence that reading further back than the last 64 tokens pays off.",
        "Reading further back than the last 64 tokens pays off on far repeats at 256 tokens, with at least one "
        "schedule.",
    ]


def test_too_few_documents_give_no_verdict_though_the_interval_is_below_zero():
    open_ = (
        "reading further back than the last 64 tokens pays off is undecided: a verdict needs 10 documents, and there"
    )
    assert verdict([row("yarn", 128, BETTER, texts=9)]) == [f"Whether {open_} are 9."]
    assert verdict([row("yarn", 128, BETTER, texts=1)]) == [f"Whether {open_} is 1."]
    assert (
        verdict([row("yarn", 128, BETTER, BETTER, texts=11)])[1]
        == f"Whether {open_.replace('pays off', 'pays off on far repeats')} are 9."
    )


def test_the_table_of_the_answer_has_the_perplexity_of_truncation():
    """Up to the trained 64 tokens it is as-is; beyond them it has the losses there and those of its windows."""
    result = perplexity(llama(), documents(12, 128), [32, 64, 128], ["linear:factor=2"], truncation_stride=16)
    line = next(each for each in result.main_table().splitlines() if each.startswith("| truncation"))
    *within, shown = [float(cell) for cell in line.split("|")[2:5]]
    losses = np.array(result.losses("as-is", 128))
    whole = np.hstack([losses[:, :63], np.array(result.truncation.nll)])
    assert within == pytest.approx([row.ppl for row in result.rows[:2]], rel=1e-3) and whole.shape == (12, 127)
    assert shown == pytest.approx(np.exp(whole.mean(dtype=float)), rel=1e-3)
    assert "truncation" not in perplexity(llama(), documents(12, 128), [32, 64], ["linear:factor=2"]).main_table()
