"""What a shell's TAB offers: schedules, their fields, engines, and paths where paths belong."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from click.shell_completion import ShellComplete

from ropescale.cli.main import group
from ropescale.schedules import names


def offered(*words: str, last: str = "") -> list[tuple[str, str]]:
    found = ShellComplete(group, {}, "ropescale", "_ROPESCALE_COMPLETE").get_completions(list(words), last)
    return [(each.type, each.value) for each in found]


@pytest.mark.parametrize("words", [["patch", "m", "--schedule"], ["eval", "m", "--baseline"], ["schedules"]])
def test_schedules_are_completed_by_name(words):
    assert offered(*words, last="yar") == [("plain", "yarn")]
    assert offered(*words) == [("plain", name) for name in names()]


def test_a_schedules_fields_are_completed_and_each_once():
    assert offered("patch", "m", "--schedule", last="yarn:beta_") == [
        ("plain", "yarn:beta_fast="),
        ("plain", "yarn:beta_slow="),
    ]
    left = offered("patch", "m", "--schedule", last="yarn:factor=4,beta_fast=16,beta_")
    assert left == [("plain", "yarn:factor=4,beta_fast=16,beta_slow=")]


def test_engines_are_completed():
    assert offered("export", "m", "--for", last="vl") == [("plain", "vllm")]


@pytest.mark.parametrize(
    "words",
    [
        ["patch"],
        ["verify"],
        ["report", "one"],
        ["restore"],
        ["gguf"],
        ["eval", "m", "--data"],
        ["eval", "m", "--key-spans"],
        ["patch", "m", "-o"],
        ["inspect", "m", "--plot"],
        ["patch", "m", "--schedule"],
    ],
)
def test_paths_are_left_to_the_shell(words):
    assert offered(*words, last="./some") == [("file", "./some")]


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_offers_both(python, tmp_path):
    source = python("-m", "ropescale", env={"_ROPESCALE_COMPLETE": "bash_source"}).stdout
    (tmp_path / "complete.bash").write_text(source)
    listing = f"source {tmp_path}/complete.bash; complete -p ropescale"
    done = subprocess.run(["bash", "-c", listing], capture_output=True, text=True)
    assert "_ropescale_completion" in done.stdout
    words = {"_ROPESCALE_COMPLETE": "bash_complete", "COMP_WORDS": "ropescale patch m --schedule ya", "COMP_CWORD": "4"}
    assert python("-m", "ropescale", env=words).stdout == "plain,yarn\n"
