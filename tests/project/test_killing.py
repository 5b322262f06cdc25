"""The commands that write files, killed at steps on the disk; at random too, and evaluations, in ``make kill``."""

from __future__ import annotations

import os

import pytest
from crashing import tree
from killing.judging import seen
from killing.scenes import copied
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


def test_a_copied_scene_keeps_links_and_times(tmp_path):
    folder, to = tmp_path / "a", tmp_path / "b"
    folder.mkdir()
    (folder / "one").write_text("1")
    os.link(folder / "one", folder / "two")
    (folder / "three").symlink_to("one")
    os.utime(folder / "one", ns=(1, 12345))
    copied(folder, to)
    assert tree(to) == tree(folder)
    assert (to / "one").samefile(to / "two") and (to / "one").stat().st_mtime_ns == 12345


def test_inodes_and_times_in_a_record_are_no_difference(tmp_path):
    (tmp_path / "ropescale.json").write_text('{"files": {"w": {"how": "hard", "inode": 1}}}')
    before = seen(tmp_path)
    (tmp_path / "ropescale.json").write_text('{"files": {"w": {"how": "hard", "inode": 2}}}')
    assert seen(tmp_path) == before
    (tmp_path / "ropescale.json").write_text('{"files": {"w": {"how": "copy", "inode": 2}}}')
    assert seen(tmp_path) != before
