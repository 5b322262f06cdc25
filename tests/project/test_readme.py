"""Everything the README shows is run, and what it lists is what there is."""

from __future__ import annotations

import dataclasses
import re
import shlex
from pathlib import Path

import pytest

from ropescale.cli.main import main
from ropescale.evals.reference import CHECKPOINT, held_out_documents
from ropescale.schedules import lookup, names

README = Path(__file__).parents[2] / "README.md"
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
MAKE = {"make demo", "make test"}
"""Run by the continuous integration itself, which starts with them."""


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that holds what the README's blocks speak of."""
    (tmp_path / "CKPT").symlink_to(CHECKPOINT)
    (tmp_path / "book.txt").write_text(held_out_documents()[0][:12_000], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_block_runs_in_order(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names_so_far: dict[str, object] = {}
    for language, text in BLOCKS:
        if language == "python":
            run_python(text, names_so_far)
        else:
            run_shell(text)
    assert (workplace / "CKPT-2k" / "ropescale.json").exists()
    assert (workplace / "half.png").stat().st_size > 10_000
    assert "| yarn:factor=8" in capsys.readouterr().out


def run_python(text: str, names_so_far: dict[str, object]) -> None:
    """A block whose first line names a file is saved; any other is executed after those before it."""
    named = re.match(r"# (\w+\.py)\n", text)
    if named:
        Path(named[1]).write_text(text, encoding="utf-8")
    else:
        exec(compile(text, "README.md", "exec"), names_so_far)


def run_shell(text: str) -> None:
    for line in text.strip().splitlines():
        command = shlex.split(line, comments=True)
        if " ".join(command) not in MAKE:
            assert command[0] == "ropescale", f"a line that no test runs: {line}"
            assert main(command[1:]) == 0, line


def test_the_languages_of_the_blocks_are_known() -> None:
    assert {language for language, _ in BLOCKS} == {"sh", "python"}


def test_the_table_of_schedules_is_what_there_is() -> None:
    section = README.read_text(encoding="utf-8").split("## The schedules")[1].split("\n## ")[0]
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
