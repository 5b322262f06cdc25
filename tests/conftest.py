"""Fixtures for every test. The same tests run in a checkout, in a never-installed clone and against a wheel."""

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parent
HELPERS = TESTS / "helpers"
PLACES = [HELPERS, TESTS / "tools", TESTS.parent / "docs" / "examples"]
PLACES += [HELPERS / name for name in ("engines", "model_coverage", "runs", "scripts", "trainings")]
sys.path[:0] = map(str, PLACES)

gc.disable()  # until everything is imported and collected, see pytest_collection_finish

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as shells start what runs in their background
    signal.signal(signal.SIGINT, signal.default_int_handler)

import surroundings  # noqa: E402, F401 (before anything imports a library)
from configurations import write_checkpoint  # noqa: E402
from launching import environment  # noqa: E402

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Build = Callable[[Path, str], Path]
COMMITTED = "1795000000"  # seconds since 1970, as .ci/release takes them from the commit


def pytest_configure(config: pytest.Config) -> None:
    """Here and not in pyproject.toml, which is not there when the tests run against a wheel."""
    config.addinivalue_line("markers", "slow: takes more than a few seconds; continuous integration runs it")
    config.addinivalue_line("markers", "long: slow, and strikes at random for minutes; run last where there is time")
    config.addinivalue_line("markers", "engines: other versions or engines, in environments made once (`make engines`)")


def pytest_collection_finish() -> None:
    """Lets the garbage collector look less often, and not at what is imported: that took a tenth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100000)
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def working_directory(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Works in an empty folder: what a test writes beside itself is seen, and the checkout stays as it was."""
    os.chdir(tmp_path_factory.mktemp("working"))


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout; skips where the tests were copied away from it."""
    root = Path(__file__).resolve().parent.parent
    if not (root / "pyproject.toml").is_file():
        pytest.skip("looks at the repository itself, which is not beside these tests")
    return root


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs a fresh interpreter that sees the same ropescale as this one: ``python("-c", "...", cwd=...)``."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")

    def run(*words: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> Any:
        where = {"cwd": cwd or elsewhere, "env": environment(**(env or {}))}
        return subprocess.run([sys.executable, *words], **where, capture_output=True, text=True, timeout=600)

    return run


@pytest.fixture
def ran(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[str, str]]:
    """Runs the command line, and returns what it printed: ``out, err = ran("schedules", "yran", code=2)``."""
    from ropescale.cli.main import main

    def run(*words: object, code: int = 0) -> tuple[str, str]:
        capsys.readouterr()  # what came before
        found = main([str(word) for word in words])
        printed = capsys.readouterr()
        assert found == code, printed.err
        return printed

    return run


@pytest.fixture
def refused(ran: Callable[..., tuple[str, str]]) -> Callable[..., str]:
    """Runs the command line, and returns the sentence of its refusal, the one line of its errors."""

    def run(*words: object) -> str:
        out, err = ran(*words, code=2)
        lines = [line for line in err.splitlines() if line.startswith("error:")]
        assert (out, len(lines)) == ("", 1) and "Traceback" not in err, err
        return lines[0]

    return run


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint at ``model`` in the working directory, which holds nothing else."""
    monkeypatch.chdir(tmp_path)
    return write_checkpoint(tmp_path / "model", files={"model.safetensors": b"weights"})


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Computes on one thread, for logits that are compared bit for bit."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny Llama of trained length 64 with a tokenizer of bytes, on disk."""
    import tiny

    return str(tiny.checkpoint(tmp_path_factory.mktemp("checkpoint"), tiny.llama(vocab_size=257)))


@pytest.fixture(scope="session", autouse=True)
def _nothing_is_drawn_and_no_disk_waited_for() -> Iterator[None]:
    """Saves results with empty pictures, which take long to draw; and no power cut comes before files are on disk."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("ropescale.evals.results.saving.drawn", lambda draw: b"\x89PNG")
        patched.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture
def pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws the pictures of results after all."""
    from ropescale.output import plotting

    monkeypatch.setattr("ropescale.evals.results.saving.drawn", plotting.drawn)


@pytest.fixture
def few_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets ``recommend`` try one candidate of each schedule."""
    from ropescale.evals.recommending import candidates

    grid = candidates.grid
    monkeypatch.setattr(candidates, "grid", lambda *given: grid(*given)[:1])


@pytest.fixture(scope="session")
def build(python: Run, tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Builds ``sdist`` or ``wheel`` in a folder of sources and returns the file."""

    def run(sources: Path, kind: str) -> Path:
        out = tmp_path_factory.mktemp(kind)
        code = f"from setuptools import build_meta; build_meta.build_{kind}({str(out)!r})"
        done = python("-c", code, cwd=sources, env={"PYTHONPATH": "", "SOURCE_DATE_EPOCH": COMMITTED})
        assert done.returncode == 0, done.stderr
        [built] = out.iterdir()
        return built

    return run
