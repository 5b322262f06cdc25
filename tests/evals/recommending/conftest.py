"""What `ropescale recommend` is given."""

import numpy as np
import pytest
from configurations import write_files


@pytest.fixture
def texts(tmp_path):
    """Twelve documents of 140 random letters."""
    letters = np.random.default_rng(1).integers(97, 123, (12, 140)).astype(np.uint8)
    return write_files(tmp_path / "texts", {f"{number}.txt": row.tobytes() for number, row in enumerate(letters)})
