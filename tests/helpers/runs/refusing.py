"""Checks of every refusal of the command line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from crashing import unchanged
from fuzzing.judging import limited

from ropescale.cli.main import main
from ropescale.errors import CheckpointError


def one_error(err: str, *facts: str) -> None:
    """Asserts that this is one line of error, and that it has all facts."""
    assert err.startswith("error: ") and err.count("\n") == 1, err
    assert all(fact in err for fact in facts), (facts, err)


@contextmanager
def untouched(folder: Path, match: str, error: type[Exception] = CheckpointError) -> Iterator[None]:
    """Asserts that the block is refused by this error, and that nothing below a folder has changed."""
    with unchanged(folder), pytest.raises(error, match=match):
        yield


def refused(capsys: pytest.CaptureFixture[str], words: list[str], *facts: str) -> str:
    """Runs the command line and returns its one short line of error, which has all facts; nothing was written."""
    with unchanged(Path.cwd()), limited(10):
        code = main(words)
    captured = capsys.readouterr()
    assert (code, captured.out) == (2, ""), captured.err[:2000]
    one_error(captured.err, *facts)
    assert "Traceback" not in captured.err
    assert "unexpected " not in captured.err.replace("unexpected extra argument", "")
    assert len(captured.err) < 500
    return captured.err
