"""Requests that are repeated at once, with no key, and what servers are asked about."""

import random
from pathlib import Path

import pytest
from configurations import write_files

from ropescale.checkpoints.loading import load_tokenizer
from ropescale.evals.backends import client


@pytest.fixture(autouse=True)
def hurried(monkeypatch):
    monkeypatch.setattr(client, "PAUSE", 0.01)
    monkeypatch.delenv(client.KEY, raising=False)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Twelve texts of a thousand letters, in which words come again."""
    words = "the clocks were striking thirteen on a bright cold day in April while winds rose".split()
    texts = {f"{seed:02}.txt": " ".join(random.Random(seed).choices(words, k=180)) for seed in range(12)}
    return write_files(tmp_path_factory.mktemp("texts"), texts)


@pytest.fixture(scope="module")
def tokens(checkpoint):
    tokenizer = load_tokenizer(Path(checkpoint))
    return lambda text: tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
