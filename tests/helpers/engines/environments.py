"""Environments with other versions and other engines in them, made once and kept.

Such an environment borrows the libraries of the interpreter that runs the tests (torch above all) and puts what is
asked for before them. ropescale itself is not in it, so what loads there needs nothing of ours.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import venv
from pathlib import Path

import filelock
import torch

CACHE = Path(os.environ.get("ROPESCALE_TEST_CACHE") or Path.home() / ".cache" / "ropescale-tests")
"""Where environments are kept between runs; delete it to have them made again."""


def environment(
    name: str,
    *requirements: str,
    options: tuple[str, ...] = (),
    env: dict[str, str] | None = None,
    without: tuple[str, ...] = (),
) -> Path:
    """The interpreter of an environment with these requirements; the second call finds it made.

    Args:
        name: what it is for; the folder's name begins with it.
        requirements: as pip takes them; pin them, because an environment is never updated.
        options: more words for ``pip install``, such as ``--no-deps``.
        env: more variables for ``pip install``, such as ``CMAKE_ARGS``.
        without: packages that are required, and removed again after the installation.

    Raises:
        RuntimeError: pip failed; the message holds the end of what it said.
    """
    asked = repr((sys.version, torch.__version__, requirements, options, sorted((env or {}).items()), *without))
    folder = CACHE / f"{name}-{hashlib.sha256(asked.encode()).hexdigest()[:12]}"
    python, done = folder / "bin" / "python", folder / ".done"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(f"{folder}.lock"):
        if not done.exists():
            venv.create(folder, clear=True)
        _lend(folder)  # each time: the checkout that made it may be gone
        if not done.exists():
            _pip(python, "install", *options, *requirements, env=env or {})
            if without:
                _pip(python, "uninstall", "--yes", *without)
            done.touch()
    return python


def _lend(folder: Path) -> None:
    """Adds the libraries that this interpreter has, without the ``.pth`` files among them: no editable installs."""
    libraries = Path(torch.__file__).resolve().parent.parent
    [own] = (folder / "lib").glob("python*/site-packages")
    (own / "libraries.pth").write_text(f"{libraries}\n")


def _pip(python: Path, *words: str, env: dict[str, str] | None = None) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(python), *words],
        env=os.environ | (env or {}),
        capture_output=True,
        text=True,
    )
    if done.returncode:
        said = f"{done.stdout[-2000:]}{done.stderr[-2000:]}"
        raise RuntimeError(f"pip {words[0]} failed for {' '.join(words[1:])}:\n{said}")
