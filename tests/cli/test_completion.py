"""A shell's TAB offers schedules, engines, and paths where paths belong."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

import ropescale
from ropescale.cli.main import group
from ropescale.schedules import names


def offered(*words: str, last: str = "") -> list[tuple[str, str]]:
    found = ShellComplete(group, {}, "ropescale", "_ROPESCALE_COMPLETE").get_completions(list(words), last)
    return [(each.type, each.value) for each in found]


@pytest.mark.parametrize("words", [["patch", "m", "--schedule"], ["eval", "m", "--baseline"], ["schedules"]])
def test_schedules_are_completed_by_name(words):
    assert offered(*words, last="yar") == [("plain", "yarn")]
    assert offered(*words) == [("plain", name) for name in names()]


@pytest.mark.parametrize("words", [["verify"], ["eval", "m", "--data"], ["patch", "m", "-o"], ["patch", "--schedule"]])
def test_paths_are_left_to_the_shell(words):
    assert offered(*words, last="./some") == [("file", "./some")]


@pytest.fixture
def command(tmp_path, monkeypatch):
    """A command ``ropescale`` that a shell finds, in a folder with one file."""
    found = tmp_path / "bin" / "ropescale"
    found.parent.mkdir()
    package = Path(ropescale.__file__).resolve().parent.parent
    found.write_text(f'#!/bin/sh\nPYTHONPATH={package} exec {sys.executable} -m ropescale "$@"\n')
    found.chmod(0o755)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "book.txt").touch()
    monkeypatch.setenv("PATH", f"{found.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path / "here")


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_after_the_line_of_the_guide(command, repository):
    page = (repository / "docs" / "command-line.md").read_text()
    line = re.findall(r"^\| bash[^|]* \| `([^`]+)` \|", page, re.MULTILINE)[0].replace("\\|", "|")
    script = f"{line}\nCOMP_WORDS=(ropescale export m --for transformers); COMP_CWORD=4\n"
    script += "_ropescale_completion ropescale\nprintf '%s\\n' \"${COMPREPLY[@]}\"\n"
    done = subprocess.run(["bash", "--norc", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["transformers5", "transformers4"]
