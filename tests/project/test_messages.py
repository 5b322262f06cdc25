"""Messages read well in Python and on the command line, which puts the options after the sentence."""

from __future__ import annotations

import ast
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from ropescale.cli.main import COMMANDS, LazyGroup, main, translate
from ropescale.errors import CheckpointError, ConfigError, RopescaleError

ROOT = Path(__file__).resolve().parents[2]
WORD = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
COMMAND_LINES = (
    "ropescale/engines",
    "ropescale/exporting.py",
    "ropescale/checkpoints/model_card.py",
    "evals/recommending/deployment.py",
    "evals/reference/__main__.py",
    "evals/searching/results.py",
    "evals/training/__main__.py",
)
"""Places that build command lines for users to paste, or are a command of their own."""

pytestmark = pytest.mark.skipif(not (ROOT / "cli").is_dir(), reason="needs the sources as they lie in a clone")


def options() -> set[str]:
    """Every option of ropescale's commands."""
    group = LazyGroup()
    commands = [group.get_command(click.Context(group), name) for name in COMMANDS]
    return {word for command in commands if command for parameter in command.params for word in parameter.opts}


def texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every string of a module but its docstrings."""
    docstrings = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.lineno, node.value


def test_no_message_names_an_option_of_the_command_line() -> None:
    ours = options()
    assert {"--layers", "--schedule", "--out"} <= ours
    modules = [path for room in ("ropescale", "evals") for path in (ROOT / room).rglob("*.py")]
    found = [
        f"{path.relative_to(ROOT)}:{line} {word}"
        for path in modules
        if not str(path.relative_to(ROOT)).startswith(COMMAND_LINES)
        for line, text in texts(ast.parse(path.read_text(encoding="utf-8")))
        for word in WORD.findall(text)
        if word in ours and not (path.name == "uploading.py" and text == "--private")  # of `hf upload`
        if path.name != "exporting.py"  # commands to copy
    ]
    assert not found, "\n".join(found)


def test_the_fields_of_an_error_follow_it_as_options_and_a_path_stays_as_it_is(capsys: pytest.CaptureFixture) -> None:
    assert main(["inspect", "nope stride=3"]) == 2
    assert capsys.readouterr().err.startswith("error: folder nope stride=3 does not exist; ")
    assert main(["patch", "nope", "--schedule", "yarn:factor=2", "-o", "out", "--in-place"]) == 2
    assert capsys.readouterr().err == "error: out and in_place are mutually exclusive; choose one (-o, --in-place)\n"


@pytest.mark.parametrize(
    ("command", "fields", "options"),
    [
        ("patch", ("layers",), " (--layers)"),
        ("eval", ("short_context", "source"), " (--[no-]short-context, --data)"),
        ("eval", ("schedule",), " (--schedule)"),
        ("report", ("layers",), ""),
        (None, ("layers",), ""),
    ],
)
def test_an_error_shows_the_options_that_the_command_has(
    command: str | None, fields: tuple[str, ...], options: str
) -> None:
    assert translate(ConfigError("no layer rotates", *fields), command) == (2, f"no layer rotates{options}")


@pytest.mark.parametrize("kind", [RopescaleError, ConfigError, CheckpointError])
def test_an_error_keeps_its_fields_on_its_way_between_processes(kind: type[RopescaleError]) -> None:
    again = pickle.loads(pickle.dumps(kind("choose all layers", "layers")))
    assert str(again) == "choose all layers" and again.fields == ("layers",)
