"""Requests that are repeated at once, with no key and no certificates."""

from __future__ import annotations

import pytest
from fake_hub import share_ssl_context

from ropescale.evals.servers import client


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PAUSE", 0.01)
    share_ssl_context(monkeypatch)
    monkeypatch.delenv(client.KEY, raising=False)
