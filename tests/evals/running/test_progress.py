"""Progress as a person sees it while a pass runs."""

import io
import math
import re
import sys

import numpy as np
from tiny import documents, llama

from ropescale.evals import perplexity
from ropescale.evals.progress import Progress


class Terminal(io.StringIO):
    """A stderr that is looked at."""

    def isatty(self):
        return True


def test_the_bar_ends_with_the_perplexity_of_the_table(monkeypatch):
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    options = {"windows": 1, "batch_tokens": 64, "progress": True}
    result = perplexity(llama(), documents(3, 130), [64], ["yarn:factor=2"], **options)
    rows, at, column = [""] * 99, 0, 0  # the screen at the end, on which no bar is left in the way of a note
    for move, piece in re.findall(r"([\r\n]|\x1b\[A|)([^\r\n\x1b]*)", terminal.getvalue()):
        at, column = at + (move == "\n") - (move == "\x1b[A"), 0 if move in ("\r", "\n") else column
        rows[at] = rows[at][:column].ljust(column) + piece + rows[at][(column := column + len(piece)) :]
    assert re.match(r"[\d,]+ tokens in ", rows[at - 1]) and "whole run" not in "".join(rows)
    for each in result.rows:
        [last] = [row for row in rows if row.startswith(f"{each.schedule} at 64: 100%")]
        assert f"ppl {each.ppl:.4g}" in last and "tok/s" in last and "192/192" in last
    [total] = set(re.findall(r"whole run:.*?\d+/(\d+) ", terminal.getvalue()))
    assert int(total) >= 2 * 192


def test_nothing_is_drawn_into_a_file_and_nothing_said_that_was_not_asked_for(monkeypatch, capsys):
    perplexity(llama(), documents(3, 130), [64], batch_tokens=64)
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("RANK", "3")  # a loaded model stays in its process, whatever launched it
    perplexity(llama(), documents(3, 130), [64], batch_tokens=64, progress=True)
    assert "\r" not in (err := capsys.readouterr().err) and "%" not in err and "memory" in err


def test_into_a_file_goes_a_line_of_the_whole_run_a_minute_with_the_perplexity_of_what_is_scored(monkeypatch, capsys):
    now = [1000.0]
    monkeypatch.setattr("tqdm.std.time", lambda: now[0])
    with Progress("whole run", 2000, True, line=1) as whole:
        for title in ("as-is at 64", "yarn at 64"):
            with Progress(title, 1000, True, whole=whole) as progress:
                for _ in range(10):
                    now[0] += 25
                    progress.add(100, np.full(90, math.log(10 if now[0] < 1030 else 20), np.float32))
                    whole.add(100)
    said = capsys.readouterr().err.splitlines()
    assert [line.partition("%")[0] for line in said] == [f"whole run:  {n}" for n in (15, 30, 45, 60, 75, 90)]
    assert "300/2.00k [01:15<07:05, 4.00tok/s, as-is at 64, ppl 15.87]" in said[0] and "yarn at 64" in said[-1]
