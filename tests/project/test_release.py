"""A release: one version everywhere, an sdist that is the repository, and one wheel whatever it is built from."""

import hashlib
import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

import ropescale

MADE_BY_SETUPTOOLS = {"PKG-INFO", "setup.cfg", "ropescale.egg-info"}

Build = Callable[[Path, str], Path]


def test_the_changelog_the_citation_and_the_package_name_one_version(repository):
    text = (repository / "CHANGELOG.md").read_text(encoding="utf-8")
    version, date = re.findall(r"^## (\d+\.\d+\.\d+) - (\d{4}-\d\d-\d\d)$", text, re.MULTILINE)[0]
    citation = yaml.safe_load((repository / "CITATION.cff").read_text(encoding="utf-8"))
    assert version == ropescale.__version__ == citation["version"]
    assert date == str(citation["date-released"])


@pytest.fixture(scope="module")
def tracked(repository: Path) -> list[str]:
    """The files under version control that are there."""
    if shutil.which("git") is None or not (repository / ".git").exists():
        pytest.skip("asks git for the files, and these are not in a clone")
    done = subprocess.run(["git", "ls-files", "-z"], cwd=repository, capture_output=True, text=True, check=True)
    return [name for name in done.stdout.split("\0") if name and (repository / name).is_file()]


@pytest.fixture(scope="module")
def checkout(repository: Path, tracked: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository in which people have worked: built pages, compiled modules, an older installation."""
    root = tmp_path_factory.mktemp("checkout")
    for name in tracked:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(repository / name, root / name)
    for name in (".venv/left", "docs/_build/html/left.html", "tests/__pycache__/left.cpython-311.pyc", "dist/left.whl"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("not to be packed")
    return root


@pytest.fixture(scope="module")
def sdist(checkout: Path, build: Build) -> Path:
    return build(checkout, "sdist")


@pytest.mark.slow
def test_the_sdist_is_what_is_under_version_control(sdist, tracked):
    with tarfile.open(sdist) as archive:
        packed = {each.name.partition("/")[2] for each in archive if each.isfile()}
    ours = {name for name in packed if name.partition("/")[0] not in MADE_BY_SETUPTOOLS}
    assert ours == set(tracked) - {".gitignore"}


@pytest.mark.slow
def test_a_wheel_from_the_sdist_is_the_wheel_from_the_checkout_byte_for_byte(sdist, checkout, build, tmp_path):
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    [unpacked] = tmp_path.iterdir()
    wheels = [build(sources, "wheel") for sources in (checkout, unpacked)]
    assert wheels[0].name == wheels[1].name == f"ropescale-{ropescale.__version__}-py3-none-any.whl"
    first, second = (hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in wheels)
    assert first == second


def test_a_release_is_not_made_of_what_is_not_committed(repository, tmp_path):
    if shutil.which("git") is None:
        pytest.skip("needs git")
    (tmp_path / ".ci").mkdir()
    shutil.copy(repository / ".ci" / "release", tmp_path / ".ci" / "release")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    (tmp_path / "dist").mkdir()
    done = subprocess.run([".ci/release"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("error: there are changes that are not committed")
    assert (tmp_path / "dist").is_dir()
