"""Sources of engines whose wheels are too large to install: downloaded once, and only the Python files kept."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import filelock
from environments import CACHE

PACKAGES = {"vllm": "vllm/model_executor/layers/rotary_embedding", "sglang": "sglang/srt/layers/rotary_embedding"}


def rotary_package(engine: str, version: str) -> Path:
    """The folder of an engine's rotary layers, as :func:`sources` has it."""
    return sources(engine, version) / PACKAGES[engine]


def sources(engine: str, version: str) -> Path:
    """A folder with an engine's Python files, out of its wheel; the second call finds it there.

    Raises:
        RuntimeError: pip could not download the wheel; the message holds the end of what it said.
    """
    folder = CACHE / f"{engine}-{version}-python"
    CACHE.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(f"{folder}.lock"):
        if not (folder / ".done").exists():
            _extract(engine, version, folder)
            (folder / ".done").touch()
    return folder


def _extract(engine: str, version: str, folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=CACHE) as beside:
        words = ["download", "--no-deps", "--only-binary", ":all:", "--dest", beside, f"{engine}=={version}"]
        done = subprocess.run([sys.executable, "-m", "pip", *words], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"pip could not download {engine} {version}:\n{done.stderr[-2000:]}")
        [wheel] = Path(beside).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder, [name for name in archive.namelist() if name.endswith(".py")])
