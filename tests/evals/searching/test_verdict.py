"""The verdict on a search rests on intervals, not on means."""

import pytest

from ropescale.evals.reporting import searches
from ropescale.evals.searching.verdict import ChangeRow, verdict

START = "yarn:factor=8"
OWN = ("as-is", 2048, -2.0, -2.1, -1.9)


def rows(*changes):
    return [ChangeRow("found", *each, interval=None) for each in changes]


def said(*changes, unmoved=False, kept=False, held="text"):
    return verdict(rows(*changes), 2048, START, unmoved=unmoved, kept=kept, held=held)


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        (
            [(START, 256, -0.08, -0.1, -0.06), (START, 2048, -0.05, -0.06, -0.04), OWN],
            "At 2,048 tokens of held-out text the found schedule is better than yarn:factor=8 (-0.0500 ± 0.0100 nats "
            "per token), and than the model as it is (-2.0000 ± 0.1000).",
        ),
        (
            [(START, 256, -0.08, -0.1, -0.06), (START, 2048, -0.05, -0.11, 0.01), OWN],
            "At 2,048 tokens of held-out text the found schedule is not told apart from yarn:factor=8 (-0.0500 ± 0.0600"
            " nats per token): nothing was gained there, though it is better at 256. Use yarn:factor=8.",
        ),
        (
            [(START, 2048, 0.05, 0.04, 0.06), OWN],
            "At 2,048 tokens of held-out text the found schedule is worse than yarn:factor=8 (+0.0500 ± 0.0100 nats "
            "per token): nothing was gained there. Use yarn:factor=8.",
        ),
        (
            [(START, 2048, -0.05, -0.06, -0.04), ("as-is", 2048, 0.05, -0.01, 0.11)],
            "At 2,048 tokens of held-out text the found schedule is not told apart from the model as it is (+0.0500 ± "
            "0.0600 nats per token): nothing was gained. Use the model as it is.",
        ),
        (
            [(START, 2048, -0.05, -0.06, -0.04), ("as-is", 2048, -1.5, -5.0, 2.0)],
            "At 2,048 tokens of held-out text the found schedule is better than yarn:factor=8 (-0.0500 ± 0.0100 nats "
            "per token). Whether it is better than the model as it is, this text does not show (-1.5000 ± 3.5000): "
            "hold out more, by more documents or a larger budget.",
        ),
        (
            [(START, 2048, -0.05, None, None), ("as-is", 2048, -2.0, None, None)],
            "Whether anything was gained is not known: one held-out document gives no interval. Give more documents.",
        ),
    ],
)
def test_the_interval_at_the_target_decides(changes, wanted):
    assert said(*changes) == wanted


def test_a_search_that_found_nothing_says_so():
    assert said((START, 2048, 0.0, 0.0, 0.0), OWN, unmoved=True) == (
        "Nothing did better on the held-out text than the start, yarn:factor=8: nothing was gained. Use yarn:factor=8."
    )


def test_of_prompts_it_speaks_of_answers():
    assert said((START, 2048, -0.5, -0.6, -0.4), OWN, held="prompts") == (
        "At 2,048 tokens of held-out prompts the found schedule is better than yarn:factor=8 (-0.5000 ± 0.1000 nats "
        "per token of an answer), and than the model as it is (-2.0000 ± 0.1000)."
    )
    assert said((START, 2048, -0.5, -0.6, -0.4), ("as-is", 2048, -1.5, -5.0, 2.0), held="prompts").endswith(
        "Whether it is better than the model as it is, these prompts do not show (-1.5000 ± 3.5000): hold out more, by "
        "a larger budget."
    )
    assert said((START, 2048, 0.0, 0.0, 0.0), OWN, unmoved=True, held="prompts").startswith(
        "Nothing did better on the held-out prompts than the start"
    )


def test_prompts_that_do_not_decide_are_no_verdict_against_it():
    assert said((START, 2048, -0.46, -1.64, 0.28), OWN, held="prompts") == (
        "At 2,048 tokens of held-out prompts the found schedule is not told apart from yarn:factor=8 (-0.4600 (-1.6400 "
        "to +0.2800) nats per token of an answer): so few prompts do not decide. Ask more with `ropescale passkey`, "
        "and use yarn:factor=8 until then."
    )
    assert "nothing was gained" in said((START, 2048, 0.46, -0.28, 1.64), OWN, held="prompts")
    assert "is worse than yarn:factor=8" in said((START, 2048, 0.46, 0.28, 1.64), OWN, held="prompts")


def test_where_short_text_is_kept_the_start_is_no_way_out():
    assert said((START, 2048, 0.0, -0.1, 0.1), OWN, kept=True).endswith("nothing was gained there.")


def test_runs_that_were_stored_before_the_model_as_it_is_was_measured_are_shown():
    row = {"schedule": "found", "baseline": START, "length": 512, "delta_nll": -0.05, "low": -0.06, "high": -0.04}
    results = {"found": [{"spec": "yarn:factor=9", "tokens": 7}], "protocol": {"method": "cma"}, "paired": [row]}
    assert searches.headline(results) == (
        "At 512 tokens the searched schedule changes the loss of yarn:factor=8 by -0.0500 ± 0.0100 nats per token, on "
        "text that was held out (cma, 7 tokens)."
    )
