"""The command lines that the pages show, and whether each can be understood as it stands; nothing is run."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import click
from readme_blocks import FENCED, blocks_in

from ropescale.cli.main import COMMANDS, group
from ropescale.schedules import parse

INDENTED = re.compile(r"^ {4,}(?:ropescale|python) (?:.*\\\n)*.*$", re.MULTILINE)
SHELLS = {"sh", "bash", "console"}

THEIRS = {"convert_hf_to_gguf.py"}
"""Scripts of llama.cpp, which are not ours to look into."""


def command_lines(page: str) -> Iterator[str]:
    """The lines of every block for a shell, continued ones joined; of a console those after a ``$``."""
    for language, text in blocks_in(page):
        if language in SHELLS:
            lines = text.replace("\\\n", " ").splitlines()
            yield from (line.removeprefix("$ ") for line in lines if language != "console" or line.startswith("$ "))
    for text in INDENTED.findall(FENCED.sub("", page)):
        yield text.replace("\\\n", " ").strip()


def sessions(page: str) -> Iterator[tuple[list[str], str]]:
    """The words of each command in a console, and what is printed below it, on one line."""
    for language, text in blocks_in(page):
        if language == "console":
            for part in text.replace("\\\n", " ").split("$ ")[1:]:
                command, _, printed = part.partition("\n")
                yield shlex.split(command), " ".join(printed.split())


def understand(line: str, repository: Path) -> None:
    """Raises where a line names a command, an option, a value, a target, a file or an extra that there is not."""
    words = shlex.split(line, comments=True)
    while words and re.match(r"\w+=", words[0]):  # variables of the environment
        del words[0]
    if words:
        program, *rest = words
        if program in READERS:
            READERS[program](rest, repository)


def of_ropescale(words: list[str], repository: Path) -> None:
    """Parses the words after ``ropescale`` as the command would, and every schedule that needs no file."""
    words = list(itertools.takewhile(lambda word: word not in (">", "|"), words))
    context = group.make_context("ropescale", [])
    if words:
        name, command, rest = group.resolve_command(context, words)
        assert command is not None
        given = command.make_context(name, rest, parent=context).params
        for spec in [given.get("schedule"), given.get("baseline"), *(given.get("schedules") or ())]:
            if spec and not re.search(r"\.py\b|\.json\b|\bSPEC\b", spec):
                parse(spec)


def of_python(words: list[str], repository: Path) -> None:
    """A module that there is, ropescale's options where it is ropescale, or a file of the repository."""
    if words[0] == "-m":
        assert find_spec(words[1]), words[1]
        if words[1] == "ropescale":
            of_ropescale(words[2:], repository)
    else:
        assert words[0] in THEIRS or (repository / words[0]).is_file(), words[0]


READERS = {"ropescale": of_ropescale, "python": of_python}
"""What reads the words after each program; those of others are not looked into."""

LAUNCHED = r"(?:torchrun [^`]*?-m |python -m )?"
"""How a command of ropescale may begin in a sentence."""


def mentioned(page: str) -> Iterator[tuple[str, list[str]]]:
    """The commands that the sentences of a page mention, and the options that stand with them."""
    for span in re.findall(rf"`{LAUNCHED}ropescale\s([^`]*)`", FENCED.sub("", page)):
        name, *rest = span.split()
        if not name.startswith("-") and name != "COMMAND":
            yield name, [word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)]


def options_of(name: str) -> set[str]:
    """Every option of a command of ropescale."""
    assert name in COMMANDS, name
    context = group.make_context("ropescale", [])
    _, command, _ = group.resolve_command(context, [name])
    assert command is not None
    help_names = set(group.context_settings.get("help_option_names", ()))
    found = (param for param in command.get_params(context) if isinstance(param, click.Option))
    return help_names | {word for param in found for word in (*param.opts, *param.secondary_opts)}
