"""Messages of the core and of the evals name parameters as Python does; the command line alone spells options."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from ropescale.cli.main import COMMANDS, LazyGroup

ROOT = Path(__file__).resolve().parents[2]
WORD = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
COMMAND_LINES = (
    "ropescale/engines",
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
    ]
    assert not found, "\n".join(found)
