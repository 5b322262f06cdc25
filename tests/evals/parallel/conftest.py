"""What several processes measure."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five documents of different sizes."""
    made = tmp_path_factory.mktemp("texts")
    for number in range(5):
        (made / f"{number}.txt").write_text(" ".join(map(str, range(7 * number, 90 + 20 * number))))
    return made
