"""Fresh interpreters, and ``ropescale eval`` in several processes, as a user would start it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from losses import records_in
from safetensors.numpy import load_file

import ropescale

HELPERS = Path(__file__).resolve().parents[1]
TOOLS = HELPERS.with_name("tools")


def environment(*folders: Path, **variables: str) -> dict[str, str]:
    """The environment of a fresh interpreter that finds the same ropescale, and modules in these folders."""
    found = [str(Path(ropescale.__file__).resolve().parent.parent), *map(str, folders)]
    path = os.pathsep.join(filter(None, [*found, os.environ.get("PYTHONPATH", "")]))
    return os.environ | {"PYTHONPATH": path} | variables


def assert_agree(one: Path, other: Path) -> list[dict[str, Any]]:
    """Asserts that two runs have the same numbers up to rounding, under the same tables; returns the rows of one."""
    rows, others = (json.loads((out / "results.json").read_text())["rows"] for out in (one, other))
    for row, each in zip(rows, others, strict=True):
        assert row["table_sha256"] == each["table_sha256"] and abs(row["nll"] - each["nll"]) < 1e-6
    losses, same = (load_file(out / "losses.safetensors") for out in (one, other))
    assert losses.keys() == same.keys() and all(np.abs(losses[name] - same[name]).max() < 1e-5 for name in losses)
    return rows


def results_in(out: Path) -> dict[str, Any]:
    """results.json without the sums of files; REPORT.md has the command, and so the folder."""
    return {**json.loads((out / "results.json").read_bytes()), "files": None, "sha256": None}


def launch(
    processes: int, *words: object, stop_after: Path | None = None, command: str = "eval"
) -> subprocess.CompletedProcess[str]:
    """``torchrun -m ropescale COMMAND WORDS``, one thread per process; killed once ``stop_after`` is there."""
    asked = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", processes]
    started = subprocess.Popen(
        [str(word) for word in [*asked, "-m", "ropescale", command, *words]],
        env=environment(OMP_NUM_THREADS="1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until = time.monotonic() + 300
    while stop_after is not None and started.poll() is None:
        if records_in(stop_after) or time.monotonic() > until:
            for each in [*psutil.Process(started.pid).children(recursive=True), started]:
                each.kill()  # the workers have sessions of their own
        time.sleep(0.01)
    out, err = started.communicate(timeout=300)
    return subprocess.CompletedProcess(started.args, started.returncode, out, err)


def launch_alike(
    most: int, words: Sequence[object], out: Path, command: str = "eval"
) -> list[subprocess.CompletedProcess[str]]:
    """Launches one process, two, up to ``most``, into folders of ``out``; asserts that all write the same results."""
    runs = [launch(number, *words, out / str(number), command=command) for number in range(1, most + 1)]
    assert [run.returncode for run in runs] == [0] * most, runs[-1].stderr
    first, *others = (results_in(out / str(number)) for number in range(1, most + 1))
    assert all(each == first for each in others)
    return runs


def finished(words: Sequence[object], *folders: Path) -> None:
    """Runs Python with these words, on one thread, with the modules in these folders; it must end without an error."""
    env = environment(*folders, OMP_NUM_THREADS="1")
    asked = [sys.executable, *map(str, words)]
    done = subprocess.run(asked, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
