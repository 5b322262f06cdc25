"""Where reading further than truncation pays off, and how it is said."""

from __future__ import annotations

import numpy as np
import pytest
from tiny import documents, llama

from ropescale.evals import perplexity
from ropescale.evals.metrics.against_truncation import TruncationRow, pays_off, verdict

Bounds = tuple[float, "float | None", "float | None"]
BETTER, OPEN, WORSE = (-0.2, -0.3, -0.1), (-0.1, -0.3, 0.1), (0.1, 0.05, 0.15)


def row(schedule: str, length: int, change: Bounds, far: Bounds | None = None, texts: int = 12) -> TruncationRow:
    """A row with these changes, each with its bounds; far repeats are in two documents fewer."""
    mean, low, high = change
    names = ("far_delta_nll", "far_low", "far_high", "far_tokens", "far_documents")
    others = {} if far is None else dict(zip(names, (*far, 9, texts - 2), strict=True))
    about = {"documents": texts, "comparisons": 6}
    return TruncationRow(
        schedule, length, 64, 4, 640, 100, 2 + mean, 2.0, mean, low, high, "documents", **others, **about
    )


@pytest.mark.parametrize(
    ("at_128", "at_256", "at_512", "rest"),
    [
        (BETTER, BETTER, BETTER, ", and at every longer length under some schedule."),
        (BETTER, OPEN, BETTER, ", and at 512; at the other longer lengths that is not shown."),
        (BETTER, WORSE, OPEN, "; at longer lengths that is not shown."),
    ],
)
def test_it_pays_off_at_the_smallest_length_and_what_holds_beyond_is_said(at_128, at_256, at_512, rest):
    rows = [row("yarn", length, change) for length, change in [(128, at_128), (256, at_256), (512, at_512)]]
    beyond = [length for length, change in [(256, at_256), (512, at_512)] if change is BETTER]
    (found,) = pays_off(rows)
    assert (found.tokens, found.length, found.schedule, found.beyond) == ("all", 128, "yarn", beyond)
    start = (
        "Reading further than the last 64 tokens pays off at 128 tokens, under yarn (-0.2000 ± 0.1000 nats per token)"
    )
    assert verdict(rows) == [start + rest]


def test_any_schedule_counts_and_not_only_the_best_of_the_longest_length():
    """The schedule that is best at 512 is open everywhere; another one is better than truncation at 128."""
    rows = [row("yarn:8", 128, OPEN), row("yarn:8", 512, OPEN), row("yarn:2", 128, BETTER), row("yarn:2", 512, WORSE)]
    (found,) = pays_off(rows)
    assert (found.length, found.schedule, found.beyond) == (128, "yarn:2", [])
    assert "pays off at 128 tokens, under yarn:2 (-0.2000 ± 0.1000 nats per token); at longer" in verdict(rows)[0]


def test_far_repeats_have_a_sentence_of_their_own():
    rows = [row("near", 256, WORSE, OPEN), row("wide", 256, OPEN, (-0.9, -1.0, -0.8))]
    said = verdict(rows)
    assert said[0] == (
        "Reading further than the last 64 tokens is not shown to pay off: the best at 256 tokens, wide, is not "
        "significantly better than truncation (-0.1000 ± 0.2000 nats per token)."
    )
    assert said[1] == (
        "On far repeats reading further than the last 64 tokens pays off at 256 tokens, under wide "
        "(-0.9000 ± 0.1000 nats per token)."
    )


def test_what_is_worse_is_said():
    assert (
        "the best at 128 tokens, yarn, is worse than truncation (+0.1000 ± 0.0500"
        in verdict([row("yarn", 128, WORSE)])[0]
    )


def test_too_few_documents_give_no_verdict_though_the_interval_is_below_zero():
    every = (
        "Whether reading further than the last 64 tokens pays off is undecided: a verdict takes 10 documents, and there"
    )
    far = every.replace("reading", "on far repeats reading")
    assert verdict([row("yarn", 128, BETTER, texts=9)]) == [f"{every} are 9."]
    assert verdict([row("yarn", 128, BETTER, texts=1)]) == [f"{every} is 1."]
    assert verdict([row("yarn", 128, BETTER, BETTER, texts=11)])[1] == f"{far} are 9."


def test_the_table_of_the_answer_has_the_perplexity_of_truncation():
    """Up to the trained 64 tokens that of as-is; beyond them its losses there and those of its windows."""
    result = perplexity(llama(), documents(12, 128), [32, 64, 128], ["linear:factor=2"], truncation_stride=16)
    line = next(each for each in result.main_table().splitlines() if each.startswith("| truncation"))
    shown = [float(cell.split()[0]) for cell in line.split("|")[2:5]]
    losses = np.array(result.losses("as-is", 128))
    whole = np.hstack([losses[:, :63], np.array(result.truncation.nll)])
    wanted = [np.exp(each.mean(dtype=float)) for each in (losses[:, :31], losses[:, :63], whole)]
    assert shown == pytest.approx(wanted, rel=1e-3) and whole.shape == (12, 127)
    assert "truncation" not in perplexity(llama(), documents(12, 128), [32, 64], ["linear:factor=2"]).main_table()
