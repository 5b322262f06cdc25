"""The tests of what depends on versions, in an environment with the lowest ones that pyproject.toml accepts."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from environments import environment
from other_versions import OF_EXTRAS, installed, passed
from packaging.requirements import Requirement

CAME_LATER = ("beam", "bailing, whose class has another theta")
"""Configurations in tests/configs/test_rope.py whose model types transformers has since 5.20."""

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
"""Tests of what transformers itself did wrong in that version; ``patch`` warns of Gemma 3's and Phi-3's."""


def pins(repository: Path) -> list[str]:
    """The lowest versions together, as pip takes them."""
    lines = (repository / "constraints-lowest.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


@pytest.mark.engines
def test_the_suite_passes_with_the_lowest_versions_of_everything(repository: Path, tmp_path: Path) -> None:
    builds = "test_a_configuration_reads_as_the_tables_that_stock_transformers_builds"
    left_out = [f"tests/configs/test_rope.py::{builds}[{name}]" for name in CAME_LATER]
    left_out += [f"{file}::{test}" for file, tests in FAULTS.items() for test in tests]
    assert passed(environment("lowest", *pins(repository)), repository, tmp_path, tuple(left_out)) > 1000


@pytest.mark.engines
def test_the_environment_has_the_lowest_versions(repository: Path) -> None:
    wanted = dict(pin.split("==") for pin in pins(repository))
    assert installed(environment("lowest", *pins(repository)), list(wanted)) == list(wanted.values())


def lowest_of_extras(repository: Path) -> list[str]:
    """The lower bounds of what the extras for users add, as pip takes them."""
    extras = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    asked = [
        Requirement(each) for name, extra in extras.items() if name not in ("docs", "dev", "release") for each in extra
    ]
    return [f"{each.name}=={bound.version}" for each in asked for bound in each.specifier if bound.operator == ">="]


@pytest.mark.engines
def test_what_the_extras_add_may_be_as_low_as_is_said(repository: Path, tmp_path: Path) -> None:
    pins = lowest_of_extras(repository)
    python, names = environment("extras", *pins), [pin.split("==")[0] for pin in pins]
    versions = zip(installed(python, names), pins, strict=True)
    assert all(found.startswith(pin.split("==")[1]) for found, pin in versions) and len(pins) == 6
    assert passed(python, repository, tmp_path, tests=OF_EXTRAS) > 100
