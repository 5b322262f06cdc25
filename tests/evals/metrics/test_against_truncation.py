"""From which length on reading further than truncation pays off, and how it is said."""

from __future__ import annotations

import pytest

from ropescale.evals.metrics.against_truncation import TruncationRow, pays_off, verdict

Bounds = tuple[float, "float | None", "float | None"]


def row(schedule: str, length: int, change: Bounds, far: Bounds | None = None) -> TruncationRow:
    """A row with these changes, each with its bounds."""
    mean, low, high = change
    others = (
        {}
        if far is None
        else {"far_tokens": 9, **dict(zip(("far_delta_nll", "far_low", "far_high"), far, strict=True))}
    )
    return TruncationRow(schedule, length, 64, 4, 640, 100, 2 + mean, 2.0, mean, low, high, "documents", **others)


def test_it_pays_off_from_the_length_from_which_every_interval_is_below_zero():
    """At 128 it is below, at 256 not, from 512 on it is again: so from 512 on."""
    changes = {128: (-0.2, -0.3, -0.1), 256: (-0.1, -0.3, 0.1), 512: (-0.2, -0.3, -0.1), 1024: (-0.3, -0.4, -0.2)}
    rows = [row("yarn", length, change) for length, change in changes.items()]
    (found,) = pays_off(rows)
    assert (found.tokens, found.schedule, found.length, found.worse) == ("all", "yarn", 512, False)
    assert verdict(rows) == [
        "Reading further than the last 64 tokens pays off from 512 tokens on, under yarn "
        "(-0.3000 ± 0.1000 nats per token at 1,024)."
    ]


def test_the_best_schedule_is_that_of_the_longest_length_and_far_repeats_have_their_own():
    rows = [
        row("near", 128, (-0.2, -0.3, -0.1), (0.3, 0.2, 0.4)),
        row("near", 256, (0.5, 0.4, 0.6), (0.2, 0.1, 0.3)),
        row("wide", 128, (0.1, 0.05, 0.15), (-0.5, -0.6, -0.4)),
        row("wide", 256, (0.1, 0.05, 0.15), (-0.9, -1.0, -0.8)),
    ]
    assert [(each.tokens, each.schedule, each.length, each.worse) for each in pays_off(rows)] == [
        ("all", "wide", None, True),
        ("far", "wide", 128, False),
    ]
    said = verdict(rows)
    assert "does not pay off on this text up to 256 tokens: the best schedule there, wide, is worse" in said[0]
    assert said[1].startswith("On far repeats reading further than the last 64 tokens pays off from 128 tokens on")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            (-0.1, -0.3, 0.1),
            "Reading further than the last 64 tokens does not pay off on this text up to 128 tokens: the best schedule "
            "there, yarn, is not told apart from truncation (-0.1000 ± 0.2000 nats per token at 128).",
        ),
        (
            (-0.1, None, None),
            "Whether reading further than the last 64 tokens pays off is not known: the best schedule at 128 tokens, "
            "yarn, has no interval (-0.1000 nats per token at 128).",
        ),
    ],
)
def test_what_is_not_known_is_said(change, said):
    assert verdict([row("yarn", 128, change)]) == [said]


def test_far_repeats_without_an_interval_are_not_known():
    _, said = verdict([row("yarn", 128, (-0.1, -0.3, 0.1), (-0.5, None, None))])
    assert said.startswith("Whether on far repeats reading further than the last 64 tokens pays off is not known")


def test_at_the_longest_length_alone():
    rows = [row("yarn", 128, (0.1, 0.05, 0.15)), row("yarn", 256, (-0.2, -0.3, -0.1))]
    assert "pays off at 256 tokens, under yarn" in verdict(rows)[0]
