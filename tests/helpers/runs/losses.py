"""The stored losses of a run, read and changed by hand."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from ropescale.evals.store import _headers

FILE = "losses.safetensors"


def tensors(folder: Path) -> dict[str, np.ndarray]:
    """The tensors by name, such as ``as-is @ 2048``."""
    return load_file(folder / FILE)


def index(folder: Path) -> dict[str, Any]:
    """The index in the file's metadata."""
    with safe_open(folder / FILE, "np") as file:
        return json.loads(file.metadata()["index"])


def rewrite(folder: Path, change: Callable[[dict[str, np.ndarray], dict[str, Any]], object]) -> None:
    """Changes tensors and index, and writes the file and its checksum anew, as if a run had."""
    found, about = tensors(folder), index(folder)
    change(found, about)
    save_file(found, folder / FILE, {"index": json.dumps(about)})
    reseal(folder, lambda results: results["files"].update({FILE: [digest(folder / FILE)]}))


def records_in(folder: Path) -> int:
    """How many finished records the run in a folder has committed."""
    found = 0
    for path in folder.glob("resume/*.records"):
        with path.open("rb") as file:
            found += len({(key, number) for key, number, *_ in _headers(file)})
    return found


def digest(path: Path) -> str:
    """The file's SHA-256."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def reseal(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Changes results.json and its checksum."""
    results = json.loads((folder / "results.json").read_text())
    results.pop("sha256", None)
    change(results)
    seal = hashlib.sha256(json.dumps(results, sort_keys=True).encode()).hexdigest()
    (folder / "results.json").write_text(json.dumps({**results, "sha256": seal}))
