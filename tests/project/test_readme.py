"""Everything that the README and the guides show is run, and what they list is what there is."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest
from readme_blocks import GUIDES, blocks_of, furnish, run_python, run_shell

from ropescale.cli.main import main
from ropescale.schedules import lookup, names

ROOT = Path(__file__).parents[2]
PAGES = {"README": ROOT / "README.md", **{name: ROOT / "docs" / f"{name}.md" for name in GUIDES}}


def blocks(page: str) -> list[tuple[str, str]]:
    """The language and the text of each block of code."""
    return blocks_of(PAGES[page])


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that holds what the blocks speak of."""
    furnish(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", PAGES)
def test_every_block_runs_in_order(page: str, workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names_so_far: dict[str, object] = {}
    if page == "serving":
        assert main(["patch", "CKPT", "-o", "CKPT-2k", "--schedule", "yarn", "--target-length", "2k"]) == 0
    assert blocks(page)
    for language, text in blocks(page):
        if language == "python":
            run_python(text, names_so_far)
        else:
            run_shell(text)
    made, said = MADE[page]
    assert all((workplace / name).exists() for name in made)
    assert said in capsys.readouterr().out


MADE = {
    "README": (
        ["CKPT-2k/ropescale.json", "Qwen3-8B-128k/ropescale.json", "CKPT-8x/ropescale.json", "report.html"],
        "vllm serve CKPT-2k",
    ),
    "index": (["CKPT-8x/ropescale.json"], "vllm serve CKPT-8x"),
    "patching": (["CKPT-2k/ropescale.json"], "live: yes"),
    "serving": ([], "--context-length 2048"),
    "retrieval": (["KEYS/results.json"], "passkey"),
    "adapting": (["CKPT-1k/ropescale.json", "ADAPTER/base", "MERGED/ropescale.json"], "live: yes"),
    "searching": (["factors.json", "factors-search/REPORT.md", "mine.json"], "ropescale patch CKPT"),
}
"""The files that a page's blocks write, and what they print."""


def test_the_notebook_runs_and_shows_its_plots(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cells = json.loads((ROOT / "docs" / "tour.ipynb").read_text(encoding="utf-8"))["cells"]
    monkeypatch.chdir(tmp_path)
    names_so_far: dict[str, object] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), "tour.ipynb", "exec"), names_so_far)
    shown = [kind for cell in cells for output in cell.get("outputs", []) for kind in output.get("data", {})]
    assert shown.count("image/png") == 3 and shown.count("text/html") == 2
    stored = next(output["text"] for cell in cells for output in cell.get("outputs", []) if "text" in output)
    assert [line.split()[-1] for line in stored] == ["False", "True"]


@pytest.mark.parametrize("page", PAGES)
def test_the_languages_of_the_blocks_are_known(page: str) -> None:
    assert {language for language, _ in blocks(page)} <= {"sh", "python"}


def test_the_readme_is_short() -> None:
    assert len(PAGES["README"].read_text(encoding="utf-8").splitlines()) <= 150


def test_the_table_of_schedules_is_what_there_is() -> None:
    section = (ROOT / "docs" / "schedules.md").read_text(encoding="utf-8").split("# The schedules")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `([\w-]+)` \|[^|]*\| ([^|]*) \|", section, re.MULTILINE)
    assert [name for name, _ in rows] == names()
    for name, fields in rows:
        listed = {} if fields == "-" else dict(re.findall(r"`(\w+)=?([\w.]*)`", fields))
        assert re.sub(r"`[\w=.]+`|, |-", "", fields) == "", name
        assert listed == {field.name: shown(field.default) for field in dataclasses.fields(lookup(name))}, name


def shown(default: object) -> str:
    if default is None or default is dataclasses.MISSING:
        return ""
    return str(default).lower() if isinstance(default, bool) else f"{default:g}"
