"""Mutated input: a few cases of every target, ninety seconds of all of them, and that the judge sees what is wrong."""

from __future__ import annotations

import os
import time

import pytest
from crashing import raising
from fuzzing import judging, targets
from fuzzing.running import keep, run_case
from fuzzing.seeds import Made
from launching import HELPERS, TOOLS, environment

from ropescale.cli import main as shell
from ropescale.errors import CheckpointError, RunError

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs a POSIX system")

CASES = {"runs": 3, "configurations": 16}
"""How many of each target run every time; the others 10."""

SEED = "every time"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Seeds that take a while."""
    return Made(tmp_path_factory.mktemp("made"))


@pytest.fixture(autouse=True)
def no_bytecode(monkeypatch):
    monkeypatch.setattr("sys.dont_write_bytecode", True)


@pytest.mark.parametrize("kind", targets.ALL, ids=lambda kind: kind.name)
def test_mutated_input_gets_an_answer_or_one_line(kind, made, tmp_path, capfd):
    each = [kind(made)]
    for number in range(CASES.get(kind.name, 10)):
        _, faults = run_case(SEED, number, each, tmp_path)
        if faults:
            kept = keep(SEED, number, each, faults, tmp_path / "kept")
            pytest.fail(f'{kind.name}, case {number} of seed {SEED!r}: {faults}; make fuzz REPLAY="{kept}"')


@pytest.mark.slow
@pytest.mark.long
def test_ninety_seconds_of_mutated_input_find_nothing(python, tmp_path):
    done = python(
        "-m", "fuzzing", "--seconds", "90", "--seed", "0", "--keep", str(tmp_path), env=environment(HELPERS, TOOLS)
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


# ---------------------------------------------------------------------------------------------------------
# The judge


def judged(monkeypatch, tmp_path, act):
    """The faults of a command that does this."""
    monkeypatch.setattr(shell.group, "main", lambda *args, **kwargs: act())
    (tmp_path / "file").write_text("mine")
    return [fault.kind for fault in judging.judged(targets.Specs(Made(tmp_path)), tmp_path, [["inspect", "x"]])]


def test_the_judge_sees_a_fault_what_was_written_what_is_gone_and_what_does_not_end(monkeypatch, tmp_path):
    for error in (CheckpointError("it is not there; look elsewhere"), RunError("it failed")):
        assert judged(monkeypatch, tmp_path, raising(error)) == []
    for error in (KeyError("x"), MemoryError(), EOFError()):
        assert judged(monkeypatch, tmp_path, raising(error)) == [type(error).__name__]
    assert judged(monkeypatch, tmp_path, lambda: (tmp_path / ".x.part").write_text("")) == ["files changed"]
    assert judged(monkeypatch, tmp_path, lambda: (tmp_path / "file").unlink()) == ["files changed"]
    assert judged(monkeypatch, tmp_path, lambda: None) == []
    monkeypatch.setattr(judging, "SECONDS", 0.1)
    assert judged(monkeypatch, tmp_path, lambda: time.sleep(60)) == ["TooLong"]
