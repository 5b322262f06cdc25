"""What must hold of every refusal of the command line."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from crashing import tree

from ropescale.cli.main import main


class TooLong(BaseException):
    """No Exception, so that nothing catches it on the way."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Stops whatever takes longer."""

    def stop(*_: Any) -> None:
        raise TooLong

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def refused(capsys: pytest.CaptureFixture[str], words: list[str], *facts: str) -> str:
    """Runs the command line and returns its one short line of error, which has all facts; nothing was written."""
    before = tree(Path.cwd())
    with within(10):
        code = main(words)
    captured = capsys.readouterr()
    assert (code, captured.out, captured.err.count("\n")) == (2, "", 1), captured.err[:2000]
    assert captured.err.startswith("error: ")
    assert all(fact in captured.err for fact in facts), (facts, captured.err)
    assert "Traceback" not in captured.err
    assert "unexpected " not in captured.err.replace("unexpected extra argument", "")
    assert len(captured.err) < 500
    assert tree(Path.cwd()) == before
    return captured.err
