"""A release as strangers meet it: made, put on an index, installed into a bare environment, and used there."""

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from environments import environment
from readme_blocks import MAKE, blocks_of, furnish

pytestmark = pytest.mark.engines

EXTRAS = ("plot", "report", "gguf", "adapters")
TOOLS = ("build", "setuptools", "twine")


@dataclass(frozen=True)
class Bare:
    """An environment that began with pip alone, and the folder in which its commands run."""

    root: Path
    place: Path

    def run(self, *words: str, seconds: int = 3600) -> subprocess.CompletedProcess[str]:
        """Runs a command of the environment, or of the system; nothing of the checkout can be imported there."""
        ours = ("PYTHONPATH", "VIRTUAL_ENV", "PYTEST_CURRENT_TEST")
        env = {key: value for key, value in os.environ.items() if key not in ours}
        env["PATH"] = os.pathsep.join([str(self.root / "bin"), *os.defpath.split(os.pathsep)])
        program = self.root / "bin" / words[0]
        first = str(program) if program.exists() else words[0]
        how = {"cwd": self.place, "env": env, "timeout": seconds}
        return subprocess.run([first, *words[1:]], **how, capture_output=True, text=True)

    def install(self, *words: str) -> str:
        """Installs with pip, and returns what it said; the versions are those of constraints.txt."""
        constraints = Path(__file__).parents[2] / "constraints.txt"
        done = self.run("python", "-m", "pip", "install", "-c", str(constraints), *words)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout

    @property
    def package(self) -> Path:
        """The folder in which ropescale is installed."""
        [found] = self.root.glob("lib/python3.*/site-packages/ropescale")
        return found


def make_bare(folder: Path) -> Bare:
    """Makes an environment with pip alone, and an empty folder beside it."""
    venv.create(folder / "environment", with_pip=True)
    (folder / "place").mkdir()
    return Bare(folder / "environment", folder / "place")


@pytest.fixture(scope="module")
def released(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the sdist and the wheel of the commit that is checked out, as ``make release`` makes them."""
    pins = (repository / "constraints.txt").read_text(encoding="utf-8").splitlines()
    tools = environment("release", *[pin for pin in pins if pin.split("==")[0] in TOOLS])
    clone = tmp_path_factory.mktemp("release") / "clone"
    subprocess.run(["git", "clone", "-q", str(repository), str(clone)], check=True)
    (clone / ".git" / "info" / "exclude").write_text(".venv\n")
    (clone / ".venv").symlink_to(tools.parent.parent)
    done = subprocess.run([".ci/release"], cwd=clone, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert done.stdout.count("PASSED") == 2  # twine's word, for each of them
    return clone / "dist"


@pytest.fixture(scope="module")
def index(released: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a package index (PEP 503) that has ropescale and nothing else."""
    root = tmp_path_factory.mktemp("index")
    page = root / "simple" / "ropescale" / "index.html"
    page.parent.mkdir(parents=True)
    lines = ["<!DOCTYPE html>"]
    for file in released.iterdir():
        shutil.copy(file, root)
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        lines.append(f'<a href="../../{file.name}#sha256={digest}">{file.name}</a>')
    page.write_text("\n".join(lines))
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(root))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/simple"
        server.shutdown()


@pytest.fixture(scope="module")
def without_extras(index: str, tmp_path_factory: pytest.TempPathFactory) -> Bare:
    """A bare environment after ``pip install ropescale``."""
    bare = make_bare(tmp_path_factory.mktemp("bare"))
    said = bare.install("--extra-index-url", index, "ropescale")
    assert "multiple versions" not in said  # pip went back to try others
    return bare


# What needs an extra, and the error that names it.
MISSING = {
    "inspect CKPT --plot pairs.png": "plots need matplotlib, which is not installed; pip install 'ropescale[plot]'",
    "report BEFORE -o report.html": "plots need matplotlib, which is not installed; pip install 'ropescale[plot]'",
    "gguf book.txt -o out.gguf --schedule yarn --factor 2": (
        "GGUF files need gguf-py, which is not installed; pip install 'ropescale[gguf]'"
    ),
}


@pytest.fixture(scope="module")
def complete(without_extras: Bare, index: str) -> Bare:
    """The same environment after ``pip install 'ropescale[...]'``; before that, what needs an extra says which one."""
    furnish(without_extras.place, without_extras.package / "evals" / "reference" / "llama-3.5m-stdlib")
    measured = without_extras.run("ropescale", *"eval CKPT --data book.txt --lengths 128 --windows 2 -o BEFORE".split())
    assert measured.returncode == 0 and "note: no plots written; plots need matplotlib, which" in measured.stderr
    for line, error in MISSING.items():
        done = without_extras.run("ropescale", *shlex.split(line))
        assert (done.returncode, done.stderr.splitlines()[-1]) == (2, f"error: {error}")
    said = without_extras.install("--extra-index-url", index, f"ropescale[{','.join(EXTRAS)}]")
    assert "multiple versions" not in said
    return without_extras


def test_the_readme_runs_where_only_the_release_is_installed(complete, repository):
    blocks = blocks_of(repository / "README.md")
    for line in (line for language, text in blocks if language == "sh" for line in text.strip().splitlines()):
        words = shlex.split(line, comments=True)
        if " ".join(words) not in MAKE:
            done = complete.run(*words)
            assert done.returncode == 0, f"{line}: {done.stderr}"
    [code] = [text for language, text in blocks if language == "python"]
    done = complete.run("python", "-c", code)
    assert done.returncode == 0 and "| yarn:factor=8" in done.stdout, done.stderr
    assert {"Qwen3-8B-128k", "CKPT-8x", "RUN", "report.html"} <= {each.name for each in complete.place.iterdir()}


def test_the_demo_runs_where_only_the_release_is_installed(complete):
    done = complete.run("ropescale", "demo")
    assert done.returncode == 0 and "live: yes" in done.stderr, done.stderr
    assert re.search(r"^\| yarn:factor=8 +\|", done.stdout, re.MULTILINE)
    assert (complete.place / "ropescale-demo" / "ppl_vs_length.png").read_bytes().startswith(b"\x89PNG")


def test_the_sdist_installs_what_the_wheel_installs(complete, index, tmp_path_factory):
    bare = make_bare(tmp_path_factory.mktemp("from-sdist"))
    how = ["--extra-index-url", index, "--no-deps", "--no-compile", "--no-binary", "ropescale"]
    said = bare.install(*how, "ropescale")
    assert "ropescale-" in said and ".tar.gz" in said
    assert contents(bare.package) == contents(complete.package)


def contents(folder: Path) -> dict[str, bytes]:
    """The files of an installed package, without what Python compiled."""
    files = [each for each in folder.rglob("*") if each.is_file() and each.suffix != ".pyc"]
    return {each.relative_to(folder).as_posix(): each.read_bytes() for each in files}
