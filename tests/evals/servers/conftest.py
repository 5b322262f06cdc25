"""Requests that are repeated at once, with no key and no certificates."""

import ssl
from importlib.util import find_spec

import pytest

from ropescale.evals.servers import client

CONTEXT = ssl.create_default_context()
"""Shared by all clients, because reading all certificates takes longer than any request here."""


@pytest.fixture(autouse=True)
def hurried(monkeypatch):
    monkeypatch.setattr(client, "PAUSE", 0.01)
    if find_spec("httpcore2"):
        monkeypatch.setattr("httpcore2.default_ssl_context", lambda **_: CONTEXT)
    monkeypatch.delenv(client.KEY, raising=False)
