"""A command that measures a tiny checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def evaluating(checkpoint: str, tmp_path: Path) -> list[str]:
    """``eval`` of a tiny checkpoint on one text of 225 bytes."""
    (tmp_path / "a.txt").write_text("It was a bright cold day in April, and the clocks were striking thirteen. " * 3)
    return ["eval", checkpoint, "--data", str(tmp_path / "a.txt")]
