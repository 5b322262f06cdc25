"""The examples of CONTRIBUTING.md: each is added to a copy of the sources, as it says, and its commands are run."""

import io
import json
import os
import re
import shutil
import sys
import traceback
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import tiny
import torch
from fake_engine import serving

NAMES = ["A schedule", "A metric", "An engine", "A server's engine", "A model family's quirk"]

_CODE = r"```(\w+)\n(.*?)```"
_FILE = re.compile(rf"^New file `([^`]+)`:\n\n{_CODE}", re.MULTILINE | re.DOTALL)
_LINE = re.compile(rf"^One line in `([^`]+)`, after `([^`]+)`:\n\n{_CODE}", re.MULTILINE | re.DOTALL)
_RUN = re.compile(r"^```console\n(.*?)```", re.MULTILINE | re.DOTALL)


@dataclass
class Example:
    """What one section says: new files, lines that are added, and commands with something that they print."""

    files: dict[str, str] = field(default_factory=dict)
    lines: dict[str, tuple[str, str]] = field(default_factory=dict)
    commands: list[tuple[str, list[str]]] = field(default_factory=list)


def example(page: str, name: str) -> Example:
    section = page.split(f"### {name}\n")[1].split("\n### ")[0].split("\n## ")[0]
    read = Example({found[1]: found[3] for found in _FILE.finditer(section)})
    read.lines = {found[1]: (found[2], found[4].removeprefix("+")) for found in _LINE.finditer(section)}
    for block in _RUN.findall(section):
        for part in block.split("$ ")[1:]:
            command, *printed = part.strip().splitlines()
            read.commands.append((command, printed))
    return read


@pytest.fixture(scope="module")
def things(tmp_path_factory) -> Iterator[dict[str, str]]:
    """A model with 16 pairs, a text and a server, by the names that the page has for them."""
    root = tmp_path_factory.mktemp("things")
    tiny.checkpoint(root / "model", tiny.llama(vocab_size=257, hidden_size=128))
    (root / "text.txt").write_text("Once upon a time there was a little house. " * 20)
    names = {"MODEL": "model", "TEXT": "text.txt", "RUN": "run"}
    with serving(kind="toy", instead={"/score": [-1.5] * 64}) as server:
        yield {"URL": server.url, **{name: str(root / file) for name, file in names.items()}}


def _place(things: dict[str, str], word: str) -> str:
    """A word of a command, with the place of what it names."""
    name, *rest = word.split("/")
    return "/".join([things.get(name, name), *rest])


@pytest.fixture(scope="module")
def printed(repository, things, tmp_path_factory) -> dict[str, list[str]]:
    """What the commands of each example print, in one copy of the sources to which all examples were added."""
    copy, page = tmp_path_factory.mktemp("copy"), (repository / "CONTRIBUTING.md").read_text()
    for part in ("ropescale", "cli", "evals"):
        shutil.copytree(repository / part, copy / part)
    shutil.copy(repository / "pyproject.toml", copy)
    for name in NAMES:
        told = example(page, name)
        assert len(told.files) <= 1 and len(told.lines) == 1 and told.commands
        for path, content in told.files.items():
            assert not (copy / path).exists()
            (copy / path).write_text(content)
        for path, (after, added) in told.lines.items():
            assert added.count("\n") == 1, "one line"
            before = (copy / path).read_text()
            assert before.count(f"{after}\n") == 1
            (copy / path).write_text(before.replace(f"{after}\n", f"{after}\n{added}"))
    lines = {name: [line.split()[1:] for line, _ in example(page, name).commands] for name in NAMES}
    commands = {name: [[_place(things, word) for word in each] for each in lines[name]] for name in NAMES}
    read, write = os.pipe()
    child = os.fork()  # which has imported the libraries
    if child == 0:
        code = 1
        try:
            said = json.dumps(all_printed(copy, commands))
            code = 0
        except BaseException:
            said = traceback.format_exc()
        with open(write, "w") as pipe:
            pipe.write(said)
        os._exit(code)
    os.close(write)
    with open(read) as pipe:
        found = pipe.read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, found
    return json.loads(found)


def all_printed(copy: Path, commands: dict[str, list[list[str]]]) -> dict[str, list[str]]:
    """Runs commands with another copy of the sources in place of the one that is imported; what each printed."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "ropescale"]:
        del sys.modules[name]
    sys.path.insert(0, str(copy))
    torch.set_num_threads(1)  # a fork has none of the others
    from ropescale.cli.main import main

    found = {}
    for name, each in commands.items():
        found[name] = []
        for words in each:
            with redirect_stdout(io.StringIO()) as both, redirect_stderr(both):
                code = main(words)
            found[name].append(both.getvalue() if code == 0 else f"exit code {code}: {both.getvalue()}")
    return found


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_one_file_and_one_line_and_works(name, repository, printed):
    commands = example((repository / "CONTRIBUTING.md").read_text(), name).commands
    assert all(command.startswith("ropescale ") for command, _ in commands)
    for (_, lines), found in zip(commands, printed[name], strict=True):
        assert all(line in found for line in lines) and not found.startswith("exit code"), found
