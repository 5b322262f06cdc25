"""Progress as a person sees it while a pass runs."""

from __future__ import annotations

import io
import math
import re
import sys

import numpy as np
import pytest
from tiny import documents, llama

from ropescale.evals import perplexity
from ropescale.evals.running import progress as module
from ropescale.evals.running.progress import Progress


class Terminal(io.StringIO):
    """A stderr that is looked at."""

    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """Seconds, to be set."""
    now = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def test_the_bar_ends_with_the_perplexity_of_the_table(monkeypatch):
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    options = {"windows": 1, "batch_tokens": 64, "progress": True}
    result = perplexity(llama(), documents(3, 130), [64], ["yarn:factor=2"], **options)
    drawn = re.split("[\r\n]", terminal.getvalue())
    for row in result.rows:
        last = [line for line in drawn if line.startswith(f"{row.schedule} at 64: 100%")][-1]
        assert f"ppl {row.ppl:.4g}" in last and "tok/s" in last and "192/192" in last


def test_nothing_is_drawn_into_a_file_and_nothing_said_that_was_not_asked_for(monkeypatch, capsys):
    perplexity(llama(), documents(3, 130), [64], batch_tokens=64)
    assert capsys.readouterr().err == ""
    perplexity(llama(), documents(3, 130), [64], batch_tokens=64, progress=True)
    assert "\r" not in (err := capsys.readouterr().err) and "%" not in err


def test_into_a_file_goes_a_line_a_minute(clock, capsys):
    with Progress("as-is at 64", 1000, shown=True) as progress:
        for _ in range(10):
            clock[0] += 25
            progress.add(100, np.full(90, math.log(20), np.float32))
    said = capsys.readouterr().err.splitlines()
    assert said == [  # after 75 seconds, 150 and 225; not after the last, which is all there is to say
        "as-is at 64: 300 of 1,000 tokens (30%), perplexity 20.00 so far, 4 tokens/s, about 3 min to go",
        "as-is at 64: 600 of 1,000 tokens (60%), perplexity 20.00 so far, 4 tokens/s, about 2 min to go",
        "as-is at 64: 900 of 1,000 tokens (90%), perplexity 20.00 so far, 4 tokens/s, less than a minute to go",
    ]


@pytest.fixture
def half_done(clock, capsys):
    """Says what is said after 100 of 200 tokens, in 100 seconds."""

    def said(nll=None, before=()):
        with Progress("t", 200, shown=True, before=before) as progress:
            clock[0] += 100
            progress.add(100, nll)
        return capsys.readouterr().err

    return said


def test_what_another_run_scored_counts_for_the_perplexity_and_not_for_the_speed(half_done):
    said = half_done(np.full(10, 5.0, np.float32), [np.full(30, 1.0, np.float32)])
    assert f"perplexity {math.exp(2.0):.4g} so far, 1 tokens/s, about 2 min to go" in said
