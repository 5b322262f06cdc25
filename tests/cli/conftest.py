"""Fixtures of the tests of commands."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.fixture
def refused(ran: Callable[..., tuple[str, str]]) -> Callable[..., str]:
    """Runs the command line, and returns the sentence of its refusal, the one line of its errors."""

    def run(*words: object) -> str:
        out, err = ran(*words, code=2)
        lines = [line for line in err.splitlines() if line.startswith("error:")]
        assert (out, len(lines)) == ("", 1) and "Traceback" not in err, err
        return lines[0]

    return run
