"""Servers of engines that run while a test asks them."""

from __future__ import annotations

import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PATIENCE = 1800
"""Seconds until a server answers; on two busy cores vLLM takes several minutes."""


@contextmanager
def running(words: list[str], log: Path, **how: Any) -> Iterator[str]:
    """Runs the command of a server on a free port, and yields its address; what it prints goes into ``log``."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with log.open("w") as file:
        server = subprocess.Popen([*words, "--port", str(port)], stdout=file, stderr=subprocess.STDOUT, **how)
        try:
            _wait(server, f"http://127.0.0.1:{port}/health", log)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
            try:
                server.wait(60)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _wait(server: subprocess.Popen[bytes], address: str, log: Path) -> None:
    until = time.monotonic() + PATIENCE
    while server.poll() is None and time.monotonic() < until:
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise AssertionError(f"the server did not come up: {log.read_text()[-3000:]}")
