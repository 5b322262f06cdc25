"""A command that measures a tiny checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny


@pytest.fixture
def evaluating(tmp_path: Path) -> list[str]:
    """``eval`` of a tiny checkpoint on one text of 225 bytes."""
    (tmp_path / "a.txt").write_text("It was a bright cold day in April, and the clocks were striking thirteen. " * 3)
    return ["eval", str(tiny.checkpoint(tmp_path / "model")), "--data", str(tmp_path / "a.txt")]
