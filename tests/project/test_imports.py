"""Imports come late: the command line answers before torch could have been loaded."""

from __future__ import annotations

import json

import pytest

import ropescale
from ropescale.evals.reference import CHECKPOINT

HEAVY = {"torch", "transformers", "numpy", "datasets", "accelerate", "matplotlib", "huggingface_hub"}


REPORT = "import sys, json; print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))\n"


def modules_after(python, code: str) -> set[str]:
    """The top-level modules that a fresh interpreter holds after ``code``."""
    done = python("-c", f"{code}\n{REPORT}")
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def modules_after_all(python, commands: list[list[str]], code: int = 0) -> set[str]:
    """The same after several commands, which end with this code."""
    asked = [[word.format(checkpoint=CHECKPOINT) for word in words] for words in commands]
    run = "import sys\nfrom ropescale.cli.main import main\n"
    return modules_after(python, run + "".join(f"assert main({words}) == {code}, {words}\n" for words in asked))


def test_the_command_line_answers_without_torch(python):
    words = ["--help"], ["--version"], ["schedules"], ["schedules", "yarn", "--json"], INSPECT, PATCH
    assert not modules_after_all(python, words) & (HEAVY | {"pydantic"})


_TO = ["--data", "none.txt", "--target-length"]


REFUSED = [
    ["search", "{checkpoint}", *_TO, "256"],
    ["search", "{checkpoint}", *_TO, "2k", "--for", "vlm"],
    ["search", "{checkpoint}", *_TO, "2k", "--seed", "-1"],
    ["search", "{checkpoint}", *_TO, "2k", "-o", "factors"],
    ["search", "nowhere/at/all", *_TO, "2k"],
    ["recommend", "{checkpoint}", *_TO, "2k", "--for", "vlm"],
    ["recommend", "{checkpoint}", *_TO, "2k", "--schedule", "yran"],
    ["recommend", "{checkpoint}", *_TO, "2k", "--short-weight", "2"],
]


def test_what_needs_no_model_is_refused_without_torch(python):
    assert "torch" not in modules_after_all(python, REFUSED, 2)


INSPECT = ["inspect", "{checkpoint}", "--schedule", "yarn", "--factor", "8"]
PATCH = ["patch", "{checkpoint}", "-o", "out", "--schedule", "yarn", "--factor", "8"]


def test_ropescale_and_its_schedules_and_geometry_are_pure_python(python):
    code = "import ropescale, ropescale.lengths, ropescale.schedules\n"
    code += "print(ropescale.schedules.create('yarn', factor=8)(ropescale.Rope(64, 10000.0, 256), 256))"
    loaded = modules_after(python, code)
    assert "ropescale" in loaded and not loaded & (HEAVY | {"click"})


@pytest.mark.parametrize("name", ropescale.__all__)
def test_every_public_name_resolves_and_is_listed(name):
    assert getattr(ropescale, name) is not None
    assert name in dir(ropescale)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'pach'"):
        _ = ropescale.pach
