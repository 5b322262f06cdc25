"""The tests of what depends on versions, in an environment with the lowest ones that pyproject.toml accepts."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from environments import environment

PARTS = (
    "configs/test_class_defaults.py",
    "configs/test_rope.py",
    "models/test_patching.py",
    "models/test_verifying.py",
    "models/test_decoding.py",
    "checkpoints/test_checkpoints.py",
    "cli/test_main.py",
    "evals/data/test_sources.py",
    "evals/results/test_results.py",
    "evals/running/test_naive_loop.py",
    "evals/searching/test_search.py",
    "evals/training/test_callback.py",
)
"""The least that meets every library: its classes, its rotary modules, its decoding, files, options, data, losses."""

CAME_LATER = ("beam", "bailing, whose class has another theta")
"""Configurations in tests/configs/test_rope.py whose model types transformers has since 5.20."""

FAULTS = {
    "tests/configs/test_rope.py": (
        "test_a_configuration_reads_as_the_tables_that_stock_transformers_builds[minimax_m2 in coordinates]",
    ),  # ignored the rotary_dim of published files
    "tests/configs/test_class_defaults.py": (
        "test_a_saved_default_configuration_reads_as_the_table_that_transformers_builds[dbrx]",
    ),  # could not read what it saved
    "tests/models/test_patching.py": (
        "test_a_document_gets_what_a_freshly_loaded_stock_model_gives_it_whatever_ran_before"
        "[gemma3_text-longrope, two lists]",
    ),  # stopped with an error at the second long text, before 5.21
    "tests/models/test_decoding.py": (
        "test_phi3_generates_exactly_across_its_switch_because_it_computes_its_cache_anew",
        "test_a_frozen_checkpoint_decodes_exactly_across_the_switch[gemma3_text-dynamic-yarn-changes2]",
        "test_a_frozen_checkpoint_decodes_exactly_across_the_switch[phi3-dynamic:factor=4-changes3]",
    ),  # the same; and Phi-3 forgot the text once generation passed its switch, before 5.20
    "tests/evals/training/test_callback.py": (
        "test_the_schedule_is_live_under_the_ways_in_which_people_train[torch_compile]",
    ),  # torch 2.6 cannot compile any model of that version
}
"""Tests of what transformers itself did wrong in that version; ``patch`` warns of Gemma 3's and Phi-3's."""


def pins(repository: Path) -> list[str]:
    """The lowest versions together, as pip takes them."""
    lines = (repository / "constraints-lowest.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


@pytest.mark.engines
def test_the_suite_passes_with_the_lowest_versions_of_everything(repository: Path, tmp_path: Path) -> None:
    python = environment("lowest", *pins(repository))
    builds = "test_a_configuration_reads_as_the_tables_that_stock_transformers_builds"
    left_out = [f"tests/configs/test_rope.py::{builds}[{name}]" for name in CAME_LATER]
    left_out += [f"{file}::{test}" for file, tests in FAULTS.items() for test in tests]
    words = [str(python), "-m", "pytest", "-q", "-n", "2", "-m", "not slow and not engines", "-p", "no:cacheprovider"]
    words += [f"tests/{part}" for part in PARTS] + [word for test in left_out for word in ("--deselect", test)]
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    env |= {"OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)}
    done = subprocess.run(words, cwd=repository, env=env, capture_output=True, text=True, timeout=3000)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    passed, deselected = (int(re.findall(rf"(\d+) {word}", done.stdout)[-1]) for word in ("passed", "deselected"))
    assert passed > 1000 and deselected >= len(left_out)


@pytest.mark.engines
def test_the_environment_has_the_lowest_versions(repository: Path) -> None:
    code = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"
    wanted = dict(pin.split("==") for pin in pins(repository))
    words = [str(environment("lowest", *pins(repository))), "-c", code, *wanted]
    found = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    assert [version.split("+")[0] for version in found] == list(wanted.values())
