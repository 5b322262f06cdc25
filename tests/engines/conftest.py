"""Fixtures of the tests of engines."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from engine_models import Apart, checkpoints, markdown, selected


@pytest.fixture(scope="module")
def folders(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """The checkpoints of Llama and of those families in the ``CASES`` of the module that are asked for."""
    families = {"llama", *(family for family, _ in selected(request, request.module.CASES))}
    return {family: checkpoints(family, tmp_path_factory.mktemp(family)) for family in families}


@pytest.fixture(scope="module")
def table() -> Iterator[dict[tuple[str, str], Apart]]:
    """A place for the differences, which are printed as a table at the end: ``make engines ARGS="... -s"``."""
    measured: dict[tuple[str, str], Apart] = {}
    yield measured
    print("\n" + markdown(measured))
