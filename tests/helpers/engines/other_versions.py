"""Runs the tests that meet the libraries, in an environment with other versions of these."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

PARTS = (
    "configs/test_class_defaults.py",
    "configs/test_rope.py",
    "models/test_patching.py",
    "verifying/test_verifying.py",
    "verifying/test_decoding.py",
    "checkpoints/test_checkpoints.py",
    "cli/test_main.py",
    "evals/data/test_sources.py",
    "evals/results/test_results.py",
    "evals/running/test_naive_loop.py",
    "evals/searching/test_search.py",
    "evals/training/test_callback.py",
)
"""The least that meets every library: its classes, its rotary modules, its decoding, files, options, data, losses."""


OF_EXTRAS = (
    "gguf/test_gguf.py",
    "output/test_plotting.py",
    "adapters/test_peft.py",
    "cli/test_search_command.py",
    "evals/reporting/test_reporting.py",
    "evals/running/test_fingerprints.py",
    "evals/training/test_example.py",
)
"""What meets the libraries of the extras: files, pictures, adapters, pages."""


def passed(
    python: Path, repository: Path, temporary: Path, left_out: tuple[str, ...] = (), tests: tuple[str, ...] = PARTS
) -> int:
    """Runs the parts and returns how many tests passed; an assertion fails where one of them does not.

    Args:
        python: the interpreter of the environment.
        repository: the checkout whose tests run.
        temporary: a folder for what they write.
        left_out: the tests that are not run, as ``file::name`` from the repository on; each must be there.
        tests: the parts, from ``tests`` on.
    """
    known = _pytest(
        python, repository, temporary, "--collect-only", "-m", "", *{name.split("::")[0] for name in left_out}
    )
    assert set(left_out) <= set(known.splitlines())
    words = [word for name in left_out for word in ("--deselect", name)]
    parts = [f"tests/{part}" for part in tests]
    said = _pytest(python, repository, temporary, "-n", "2", "-m", "not slow and not engines", *parts, *words)
    return int(re.findall(r"(\d+) passed", said)[-1])


def _pytest(python: Path, repository: Path, temporary: Path, *words: str) -> str:
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    done = subprocess.run(
        [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *words],
        cwd=repository,
        env=env | {"OMP_NUM_THREADS": "1", "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        timeout=3000,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    return done.stdout


def installed(python: Path, names: list[str]) -> list[str]:
    """Returns the versions of libraries in an environment, without what follows a plus sign."""
    code = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"
    done = subprocess.run([str(python), "-c", code, *names], capture_output=True, text=True, check=True)
    return [version.split("+")[0] for version in done.stdout.split()]
