"""Texts for the commands that measure."""

from pathlib import Path

import pytest
from configurations import write_files
from tiny import TEXT


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """A folder of three documents, one too short."""
    return write_files(tmp_path / "texts", {"a.txt": TEXT * 3, "b.txt": TEXT[::-1] * 3, "c.txt": "short"})
