"""The commands that write files, killed at steps on the disk; at random too, and evaluations, in ``make kill``."""

import os
import re

import pytest
from launching import HELPERS, TOOLS, environment

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")]

FILES = ["--commands", "patch -o,patch --force,patch --in-place,restore,gguf -o"]


STRIKES = [
    ([*FILES, "--signals", "SIGKILL", "--kills", "2"], ["2 strikes"] * 5),
    pytest.param([*FILES, "--kills", "12"], ["12 strikes"] * 15, marks=pytest.mark.long),
]


@pytest.mark.parametrize(("words", "strikes"), STRIKES)
def test_a_killed_command_harms_nobodys_file_and_completes_when_given_again(python, tmp_path, words, strikes):
    done = python("-m", "killing", "--exact", *words, "--keep", str(tmp_path), env=environment(HELPERS, TOOLS))
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert re.findall(r"\d+ strikes", done.stdout) == strikes
