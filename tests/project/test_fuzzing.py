"""Mutated input: a few cases of every target, and ninety seconds of all of them."""

import os

import pytest
from fuzzing import targets
from fuzzing.running import keep, run_case
from fuzzing.seeds import Made
from launching import HELPERS, TOOLS, environment

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs a POSIX system")

# How many of each target run every time; the others 10.
CASES = {"runs": 3, "configurations": 16}

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
    words = ["-m", "fuzzing", "--seconds", "90", "--seed", "0", "--keep", str(tmp_path)]
    done = python(*words, env=environment(HELPERS, TOOLS))
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
