"""The cost of starting the command line, against importing torch: ``python tests/benchmarks/startup.py``.

Prints, as ratios measured side by side in one run (median of five, interleaved):
``ropescale --help`` and ``ropescale patch`` of checkpoints of 1 MB and 100 GB (sparse files), each divided by
``import torch``; and the peak memory of ``patch``.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROUNDS = 5
CONFIG = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
}


def checkpoint(folder: Path, size: int) -> Path:
    """A checkpoint whose weight file claims ``size`` bytes and holds none."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    with open(folder / "model.safetensors", "wb") as weights:
        weights.truncate(size)
    return folder


def run(*command: str) -> tuple[float, int]:
    """Wall seconds and peak resident memory in MB of a child process."""
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0, command
    return time.perf_counter() - started, usage.ru_maxrss // 1024


def main() -> None:
    ropescale = (sys.executable, "-m", "ropescale")
    with tempfile.TemporaryDirectory() as place:
        small = checkpoint(Path(place) / "small", 10**6)
        large = checkpoint(Path(place) / "large", 10**11)

        def patch(source: Path) -> tuple[str, ...]:
            return (*ropescale, "patch", str(source), "-o", f"{source}-x8", "--schedule", "yarn:factor=8", "--force")

        commands = {
            "import torch": (sys.executable, "-c", "import torch"),
            "ropescale --help": (*ropescale, "--help"),
            "ropescale patch, 1 MB": patch(small),
            "ropescale patch, 100 GB": patch(large),
        }
        for command in commands.values():
            run(*command)  # fills the disk cache
        seen: dict[str, list[tuple[float, int]]] = {name: [] for name in commands}
        for _ in range(ROUNDS):
            for name, command in commands.items():
                seen[name].append(run(*command))
    torch = statistics.median(seconds for seconds, _ in seen["import torch"])
    for name, results in seen.items():
        seconds = statistics.median(seconds for seconds, _ in results)
        print(f"{name:24} {seconds / torch:6.3f} x import torch ({seconds:.2f} s), {max(m for _, m in results)} MB")


if __name__ == "__main__":
    main()
