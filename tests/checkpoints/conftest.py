"""Fixtures of the tests of checkpoints."""

from __future__ import annotations

from collections.abc import Iterator

import fake_hub
import pytest


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[fake_hub.Hub]:
    """A Hub in memory, which answers in the place of the real one."""
    with fake_hub.connected(monkeypatch) as connected:
        yield connected
