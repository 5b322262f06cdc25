"""`eval --server` of vLLM on the processor.

Wall time, eight requests at once. It needs ``VLLM_PYTHON=/path/to/python`` of vLLM's environment.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import models
import sides

LENGTH, WINDOWS, TOGETHER = 1024, 48, 8
QUIET = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_LOGGING_LEVEL": "ERROR"}
QUIET |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "PYTHONPATH": ""}
SCRIPTS = Path(__file__).parents[3] / "helpers" / "scripts"

OFFLINE = """
import json, sys, time
from vllm import LLM, SamplingParams
asked = json.load(sys.stdin)
engine = LLM(asked["model"], max_model_len=asked["length"] + 1, dtype="float32", enforce_eager=True,
             enable_prefix_caching=False, max_num_seqs=asked["together"])
sampling = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0)
prompts = [{"prompt_token_ids": ids} for ids in asked["windows"]]
seconds = []
for _ in range(asked["rounds"] + 1):
    start = time.perf_counter()
    engine.generate(prompts, sampling, use_tqdm=False)
    seconds.append(time.perf_counter() - start)
print("\\n" + json.dumps(seconds[1:]))
"""


def measure(seconds: float) -> list[sides.Row]:
    """Returns the ratios of wall time."""
    python = os.environ.get("VLLM_PYTHON")
    if python is None:
        print("servers: left out; say where vLLM is with VLLM_PYTHON")
        return []
    from ropescale import patch_checkpoint
    from ropescale.evals import Server, perplexity, reference

    windows = _windows()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "served"
        patch_checkpoint(reference.CHECKPOINT, folder, "base", target_length=LENGTH + 1)
        with serving(python, folder) as url:
            given = {"bos": "no", "windows": 1, "truncation": False, "path": reference.CHECKPOINT}
            acts = {
                "perplexity() by a server": lambda: perplexity(
                    Server(url, concurrency=TOGETHER), windows, LENGTH, **given
                ),
                "a bare loop": lambda: bare(url, str(folder), windows),
            }
            seen = sides.in_turn(acts, seconds, wall)
        offline = _offline(python, folder, windows, len(seen["a bare loop"]))
    own = {"perplexity() by a server": seen["perplexity() by a server"], "vLLM's own offline scoring": offline}
    return [*sides.ratios(seen, "a bare loop"), *sides.ratios(own, "vLLM's own offline scoring")]


def wall(act: sides.Act) -> float:
    """Seconds that an act takes."""
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


def bare(url: str, model: str, windows: Sequence[list[int]]) -> None:
    """Sends the same requests, so many at once, and reads the answers."""

    def one(ids: list[int]) -> object:
        body = {"model": model, "prompt": ids, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 0}
        head = {"Content-Type": "application/json"}
        asked = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), head)
        with urllib.request.urlopen(asked, timeout=600) as answer:
            return json.load(answer)

    with ThreadPoolExecutor(TOGETHER) as pool:
        list(pool.map(one, windows))


def _windows() -> list[list[int]]:
    _, documents = models.reference()
    flat = [int(each) for document in documents for each in document]
    return [flat[start : start + LENGTH] for start in range(0, WINDOWS * LENGTH, LENGTH)]


@contextmanager
def serving(python: str, folder: Path) -> Iterator[str]:
    """Serves a folder in float32, and yields the address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = f"serve {folder} --max-model-len {LENGTH + 1} --dtype float32 --enforce-eager --max-num-seqs {TOGETHER}"
    words += " --no-enable-prefix-caching --uvicorn-log-level error"
    command = [python, str(SCRIPTS / "vllm_command.py"), *words.split(), "--port", str(port)]
    server = subprocess.Popen(command, env=os.environ | QUIET, stdout=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{port}"
        while server.poll() is None:
            try:
                with urllib.request.urlopen(f"{url}/health", timeout=5):
                    break
            except OSError:
                time.sleep(0.5)
        yield url
    finally:
        server.terminate()
        server.wait(60)


def _offline(python: str, folder: Path, windows: Sequence[list[int]], rounds: int) -> list[float]:
    asked = {"model": str(folder), "length": LENGTH, "windows": windows, "rounds": rounds, "together": TOGETHER}
    done = subprocess.run(
        [python, "-c", OFFLINE], input=json.dumps(asked), text=True, env=os.environ | QUIET, stdout=subprocess.PIPE
    )
    if done.returncode:
        sys.exit("servers: vLLM's own scoring failed")
    return json.loads(done.stdout.splitlines()[-1])
