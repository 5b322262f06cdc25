"""``vllm serve`` as ``ropescale export`` prints it, on folders that nobody patched, asked over HTTP.

The server gets the schedule from ``--hf-overrides`` alone; what it answers is compared with stock transformers on the
folder that ``ropescale patch`` writes.
"""

from __future__ import annotations

import json
import shlex
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from engine_models import LENGTH, PROMPTS, ROUTES, Apart, expected, original, patched, schedule, wrong
from test_vllm import TOLERANCE, python, variables

from ropescale.exporting import export

__all__ = ["python"]

pytestmark = pytest.mark.engines

SPECS = {**ROUTES, "proportional": "proportional:partial_rotary_factor=0.5"}
OFF = {"proportional": "proportional:partial_rotary_factor=0.75"}
"""A schedule that no other engine is asked for, and the same with a wrong number."""

CASES = [
    *((family, route) for family in ("llama", "qwen3") for route in SPECS if route != "base"),
    *((family, "yarn") for family in ("gemma3_text", "olmo2", "gpt_neox")),
    ("phi3", "per pair"),
]
"""Every schedule that ``export`` calls honoured for two families, and one for each of the others."""

PATIENCE = 600
"""Seconds until a server answers; on two busy cores it takes more than a minute."""


@contextmanager
def serving(python: Path, command: str, log: Path) -> Iterator[str]:
    """Runs a printed command, with what the processor needs beside it, and yields the server's address."""
    program, *words = shlex.split(command.replace("\\\n", ""))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    beside = ["--dtype", "float32", "--enforce-eager", "--max-num-seqs", "2", "--no-enable-prefix-caching"]
    assert program == "vllm"
    script = Path(__file__).parents[1] / "helpers" / "scripts" / "vllm_command.py"
    words = [str(python), str(script), *words, *beside, "--host", "127.0.0.1", "--port", str(port)]
    with log.open("w") as file:
        server = subprocess.Popen(words, stdout=file, stderr=subprocess.STDOUT, env=variables())
        try:
            wait(server, f"http://127.0.0.1:{port}/health", log)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
            try:
                server.wait(60)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def wait(server: subprocess.Popen[bytes], address: str, log: Path) -> None:
    """Returns once the server answers."""
    until = time.monotonic() + PATIENCE
    while server.poll() is None and time.monotonic() < until:
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise AssertionError(f"the server did not come up: {log.read_text()[-3000:]}")


def answered(address: str, model: str, ids: list[int]) -> list[float]:
    """The log-probability of every id but the first, from the completions endpoint."""
    asked = {"model": model, "prompt": ids, "max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0}
    head = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{address}/v1/completions", json.dumps(asked).encode(), head)
    with urllib.request.urlopen(request, timeout=PATIENCE) as response:
        [choice] = json.load(response)["choices"]
    return [tokens[str(id)]["logprob"] for id, tokens in zip(ids[1:], choice["prompt_logprobs"][1:], strict=True)]


@pytest.mark.parametrize(("family", "route"), CASES)
def test_the_printed_command_serves_the_log_probabilities_of_stock_transformers(
    family: str, route: str, python: Path, tmp_path: Path
) -> None:
    source = original(family, tmp_path / "original")
    spec = SPECS[route] if family != "phi3" else schedule(family, route)
    done = export(source, "vllm", spec, **({} if ":factor=" in spec else {"target_length": LENGTH}))
    [command] = done.commands
    assert "--hf-overrides" in command.text
    with serving(python, command.text, tmp_path / "log.txt") as address:
        found: list[Any] = [answered(address, str(source), ids) for ids in PROMPTS]
    frozen = {"freeze_at": LENGTH} if route == "dynamic" else {}
    wanted = expected(patched(source, tmp_path / "patched", spec, **frozen))
    apart = Apart.between(found, wanted)
    print(f"\n{family} {route}: largest {apart.largest:.1e}, mean {apart.mean:.1e}")
    assert apart.largest < TOLERANCE
    other = patched(source, tmp_path / "wrong", OFF.get(route) or wrong(family, route))
    assert Apart.between(found, expected(other)).largest > 100 * TOLERANCE
    plain = expected(patched(source, tmp_path / "base", "base"))
    for mine, unpatched in zip(wanted, plain):
        assert Apart.between([mine], [unpatched]).largest > 100 * TOLERANCE
