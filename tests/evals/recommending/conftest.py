"""What `ropescale recommend` is given."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint with a tokenizer of bytes."""
    return tiny.checkpoint(tmp_path_factory.mktemp("tiny") / "checkpoint", tiny.llama(vocab_size=260))


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """Four documents of 140 random letters."""
    folder, generator = tmp_path / "texts", np.random.default_rng(1)
    folder.mkdir()
    for number in range(4):
        words = generator.integers(97, 123, 140).astype(np.uint8).tobytes().decode()
        (folder / f"{number}.txt").write_text(words)
    return folder
