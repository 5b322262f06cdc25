"""Requests that are repeated at once, with no key and no certificates, and what servers are asked about."""

import random
import ssl
from importlib.util import find_spec

import pytest
from configurations import write_files

from ropescale.evals.servers import client

CONTEXT = ssl.create_default_context()
"""Shared by all clients, because reading all certificates takes longer than any request here."""


@pytest.fixture(autouse=True)
def hurried(monkeypatch):
    monkeypatch.setattr(client, "PAUSE", 0.01)
    if find_spec("httpcore2"):
        monkeypatch.setattr("httpcore2.default_ssl_context", lambda **_: CONTEXT)
    monkeypatch.delenv(client.KEY, raising=False)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Twelve texts of a thousand letters, in which words come again."""
    words = "the clocks were striking thirteen on a bright cold day in April while winds rose".split()
    texts = {f"{seed:02}.txt": " ".join(random.Random(seed).choices(words, k=180)) for seed in range(12)}
    return write_files(tmp_path_factory.mktemp("texts"), texts)
