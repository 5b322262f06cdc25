"""The tests of what depends on versions, in environments with the lowest and the newest versions of the libraries.

The lowest ones are those that pyproject.toml accepts, the newest ones those that pip finds.
"""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from environments import environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

pytestmark = pytest.mark.engines

# The least that meets every library: its classes, its rotary modules, its decoding, files, options, data, losses.
PARTS = (
    "configs/test_class_defaults.py", "configs/test_rope.py", "models/test_patching.py",
    "verifying/test_verifying.py", "verifying/test_decoding.py", "checkpoints/test_checkpoints.py",
    "cli/test_main.py", "evals/data/test_sources.py", "evals/results/test_results.py",
    "evals/running/test_naive_loop.py", "evals/searching/test_search.py", "evals/training/test_callback.py",
)  # fmt: skip


# What meets the libraries of the extras: files, pictures, adapters, pages.
OF_EXTRAS = (
    "gguf/test_gguf.py", "output/test_plotting.py", "adapters/test_peft.py", "cli/test_search_command.py",
    "evals/reporting/test_reporting.py", "evals/running/test_fingerprints.py", "evals/training/test_example.py",
)  # fmt: skip


def passed(python: Path, repository: Path, temporary: Path, left_out: Any = (), tests: Any = PARTS) -> int:
    """Runs the parts and returns how many tests passed; an assertion fails where one of them does not.

    Args:
        python: the interpreter of the environment.
        repository: the checkout whose tests run.
        temporary: a folder for what they write.
        left_out: the tests that are not run, as ``file::name`` from the repository on; each must be there.
        tests: the parts, from ``tests`` on.
    """
    files = {name.split("::")[0] for name in left_out}
    known = _pytest(python, repository, temporary, "--collect-only", "-m", "", *files)
    assert set(left_out) <= set(known.splitlines())
    words = [word for name in left_out for word in ("--deselect", name)]
    parts = [f"tests/{part}" for part in tests]
    said = _pytest(python, repository, temporary, "-n", "2", "-m", "not slow and not engines", *parts, *words)
    return int(re.findall(r"(\d+) passed", said)[-1])


def _pytest(python: Path, repository: Path, temporary: Path, *words: str) -> str:
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    env |= {"OMP_NUM_THREADS": "1", "TMPDIR": str(temporary)}
    words = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
    done = subprocess.run(words, cwd=repository, env=env, capture_output=True, text=True, timeout=7200)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    return done.stdout


def installed(python: Path, names: list[str]) -> list[str]:
    """Returns the versions of libraries in an environment, without what follows a plus sign."""
    code = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"
    done = subprocess.run([str(python), "-c", code, *names], capture_output=True, text=True, check=True)
    return [version.split("+")[0] for version in done.stdout.split()]


# Configurations in tests/configs/test_rope.py whose model types transformers has since 5.20.
CAME_LATER = ("beam", "bailing, whose class has another theta")

# Tests of what transformers itself did wrong in that version; ``patch`` warns of Gemma 3's and Phi-3's.
FAULTS = {
    "tests/configs/test_rope.py": (
        "test_a_configuration_reads_as_the_tables_that_stock_transformers_builds[minimax_m2 in coordinates]",
    ),  # ignored the rotary_dim of published files
    "tests/configs/test_class_defaults.py": (
        "test_a_default_configuration_reads_as_the_table_that_transformers_builds[dbrx-saved]",
    ),  # could not read what it saved
    "tests/models/test_patching.py": (
        "test_a_document_gets_what_a_freshly_loaded_stock_model_gives_it_whatever_ran_before"
        "[gemma3_text-longrope, two lists]",
    ),  # stopped with an error at the second long text, before 5.21
    "tests/verifying/test_decoding.py": (
        "test_phi3_generates_exactly_across_its_switch_because_it_computes_its_cache_anew",
        "test_a_frozen_checkpoint_decodes_exactly_across_the_switch[gemma3_text-dynamic-yarn-changes2]",
        "test_a_frozen_checkpoint_decodes_exactly_across_the_switch[phi3-dynamic:factor=4-changes3]",
    ),  # the same; and Phi-3 forgot the text once generation passed its switch, before 5.20
    "tests/evals/training/test_callback.py": (
        "test_the_schedule_is_live_under_the_ways_in_which_people_train[torch_compile]",
    ),  # torch 2.6 cannot compile any model of that version
}


def test_the_suite_passes_with_the_lowest_versions_of_everything(repository, tmp_path):
    lines = (repository / "constraints-lowest.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    python = environment("lowest", *[f"{name}=={version}" for name, version in pins.items()])
    assert installed(python, list(pins)) == list(pins.values())
    builds = "test_a_configuration_reads_as_the_tables_that_stock_transformers_builds"
    left_out = [f"tests/configs/test_rope.py::{builds}[{name}]" for name in CAME_LATER]
    left_out += [f"{file}::{test}" for file, tests in FAULTS.items() for test in tests]
    assert passed(python, repository, tmp_path, tuple(left_out)) > 500


def test_what_the_extras_add_may_be_as_low_as_is_said(repository, tmp_path):
    project = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [each for name, each in project["optional-dependencies"].items() if name not in ("docs", "dev", "release")]
    asked = [Requirement(each) for extra in extras for each in extra]
    pins = [f"{each.name}=={bound.version}" for each in asked for bound in each.specifier if bound.operator == ">="]
    python, names = environment("extras", *pins), [pin.split("==")[0] for pin in pins]
    versions = zip(installed(python, names), pins, strict=True)
    assert all(found.startswith(pin.split("==")[1]) for found, pin in versions) and len(pins) == 5
    assert passed(python, repository, tmp_path, tests=OF_EXTRAS) > 50


def test_the_suite_passes_with_the_newest_versions_of_everything(repository, tmp_path):
    """With the versions that pip would install for the dependencies where there is none of them yet."""
    asked = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    words = ["install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-", *asked]
    done = subprocess.run([sys.executable, "-m", "pip", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    found = [each["metadata"] for each in json.loads(done.stdout)["install"]]
    versions = {canonicalize_name(each["name"]): each["version"] for each in found}
    newest = {name: versions[canonicalize_name(name)] for name in (Requirement(each).name for each in asked)}
    python = environment("newest", *[f"{name}=={version}" for name, version in newest.items()])
    assert installed(python, list(newest)) == [version.split("+")[0] for version in newest.values()]
    assert passed(python, repository, tmp_path) > 500
