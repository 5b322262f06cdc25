"""The commands that write files, killed at steps on the disk; at random too, and evaluations, in ``make kill``."""

from __future__ import annotations

import os

import pytest
from launching import HELPERS, TOOLS, environment

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

FILES = "patch -o,patch --force,patch --in-place,restore"


@pytest.mark.slow
@pytest.mark.long
def test_a_killed_command_harms_nobodys_file_and_completes_when_given_again(python, tmp_path):
    words = ["--kills", "8", "--exact", "--commands", FILES, "--keep", str(tmp_path)]
    done = python("-m", "killing", *words, env=environment(HELPERS, TOOLS))
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert done.stdout.count("8 strikes") == 12
