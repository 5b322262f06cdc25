"""The command line's shell: help, errors, exit codes, and the `schedules` command."""

import errno
import io
import json
import pickle
import re
import sys
from importlib import import_module

import click
import own_schedules
import pytest
from crashing import raising
from refusing import one_error

from ropescale import errors
from ropescale.cli import main as shell
from ropescale.schedules import names


@pytest.fixture
def failing(monkeypatch):
    """Makes ``ropescale schedules`` raise what it is given: ``failing(error)``."""
    command = import_module("ropescale.cli.schedules").command
    return lambda error: monkeypatch.setattr(command, "callback", raising(error))


@pytest.mark.parametrize("name", shell.COMMANDS)
def test_every_listed_command_explains_itself_and_each_option_once_in_sections(name, ran):
    short = ran(name, "-h").out
    assert short.startswith(f"Usage: ropescale {name}") and short == ran(name, "--help").out
    assert re.search(r"\n\n  Examples:\n    ropescale .*\n    ropescale .*\n", short) and len(short.splitlines()) < 80
    page = ran(name, "--help-all").out if "--help-all" in short else short
    assert set(short.split()) - {"\u2026"} <= set(page.split())
    listed = re.findall(r"^  (?:-\w, )?(--[\w-]+)(?= )", page, re.MULTILINE)
    parameters = import_module(f"ropescale.cli.{name}").command.params
    longest = [max(each.opts, key=len) for each in parameters if isinstance(each, click.Option)]
    assert sorted(listed) == sorted(["--help", *longest])
    assert (len(listed) > 28) == (page != short)
    titles = re.findall(r"^(\S.*):$", page, re.MULTILINE)
    assert len(titles) > bool(longest) and titles[-1] == "Other options"
    last = page.split("Other options:")[1]
    assert set(re.findall(r"(?<=  )(?:-\w, )?--([\w-]+)", last)) <= {"help", "help-all"}


TWICE = [
    (["verify", "m", "--dtype", "float32", "--dtype", "float16"], "is given 2 times; give it once"),
    (["patch", "m", "-o", "a", "--out", "b"], "is given 2 times; give it once"),
    (["patch", "m", "-o", "a", "--schedule", "yarn", "--set", "factor=2", "--set", "factor=4"], "is set twice"),
]


@pytest.mark.parametrize(("words", "said"), TWICE)
def test_what_counts_once_is_refused_twice(words, said, ran):
    assert said in ran(*words, code=2).err


WRONG = [
    (["schedule"], "no such command 'schedule'; did you mean 'schedules'?"),
    (["eval", "m", "--lengths", "64"], "missing option '--data'"),
    (["inspect", "--schedul", "yarn"], "no such option '--schedul'; did you mean '--schedule'?"),
    (["export", "m", "--for", "vlm"], "invalid value for '--for': 'vlm' is not one of 'vllm', 'sglang', "),
    (["eval", "m", "--factor", "128k"], "invalid value for '--factor': '128k' is not a factor; write 4, or "),
    (["inspect", "m", "--set", "factor"], "invalid value for '--set': 'factor' is not key=value; see `ropescale "),
]


@pytest.mark.parametrize(("words", "sentence"), WRONG)
def test_wrong_usage_is_one_line_and_exit_code_2(words, sentence, refused):
    assert refused(*words).startswith(f"error: {sentence}")


ERRORS = [
    (errors.ConfigError("gpt2 has no RoPE"), 2, "error: gpt2 has no RoPE"),
    (errors.CheckpointError("OUT exists;\n  use --force"), 2, "error: OUT exists; use --force"),
    (errors.RunError("the model's logits are NaN"), 1, "error: the model's logits are NaN"),
    (PermissionError(errno.EACCES, "Permission denied", "/x/y"), 2, "error: /x/y cannot be used: Permission den"),
    (KeyError("bogus"), 1, "error: unexpected KeyError: 'bogus'; run with --debug to see where"),
    (KeyboardInterrupt(), 130, "interrupted"),
]


@pytest.mark.parametrize(("error", "code", "line"), ERRORS)
def test_an_error_is_one_line_and_its_exit_code(error, code, line, failing, ran):
    failing(error)
    assert ran("schedules", code=code).err.strip().startswith(line)


def test_the_fields_of_an_error_follow_it_as_options_and_a_path_stays_as_it_is(ran):
    assert ran("inspect", "nope stride=3", code=2).err.startswith("error: folder nope stride=3 does not exist; ")
    err = ran("patch", "nope", "--schedule", "yarn:factor=2", "-o", "out", "--in-place", code=2).err
    assert err == "error: --in-place changes the model itself and writes no other folder; choose one (-o)\n"
    kept = pickle.loads(pickle.dumps(errors.ConfigError("no layer rotates", "layers", "short_context")))  # by a process
    assert shell.translate(kept, "eval") == (2, "no layer rotates (--layers, --[no-]short-context)")
    named = errors.DataError("a/max_docs and max_docs.txt are many; set max_docs", "max_docs")
    assert shell.translate(named, "eval") == (2, "a/max_docs and max_docs.txt are many; set --max-docs")


@pytest.mark.parametrize("words", [["--debug", "schedules"], ["schedules", "--debug"]])
def test_debug_shows_the_traceback_wherever_it_stands(words, failing, ran):
    failing(errors.ConfigError("gpt2 has no RoPE"))
    err = ran(*words, code=2).err
    assert "Traceback (most recent call last)" in err
    assert err.endswith("error: gpt2 has no RoPE\n")


def test_a_refusal_ends_the_process_with_code_2_and_one_line(python):
    done = python("-m", "ropescale", "schedules", "yran")
    assert (done.returncode, done.stdout) == (2, "")
    one_error(done.stderr, "yran")


def test_a_reader_that_leaves_early_is_not_an_error(python):
    code = "import os, sys\nfrom ropescale.cli.main import main\nreading, writing = os.pipe()\n"
    code += "os.dup2(writing, 1)\nos.close(reading)\nos.close(writing)\nsys.exit(main(['schedules']))"
    done = python("-c", code)
    assert done.returncode < 2 and done.stderr == ""


def test_schedules_lists_what_each_does_needs_and_cites_in_a_hundred_columns(ran):
    lines = ran("schedules").out.splitlines()
    assert {len(line) for line in lines} <= set(range(101)), "a hundred columns suffice"
    assert len({len(line) for line in lines}) == 1, "the table's columns line up"
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    assert [row[0] for row in rows] == names()
    assert all(row[1] and "..." not in row[1] for row in rows), "each says in a few words what it does"
    assert ["short_factor, long_factor", "arXiv:2402.13753"] in [row[2:] for row in rows]


def test_schedules_json_holds_the_defaults_of_the_paper(ran):
    page = ran("schedules", "yarn").out
    assert page.startswith("# yarn\n") and "beta_slow: pairs with fewer turns than this" in page
    yarn = json.loads(ran("schedules", "yarn", "--json").out)
    fields = {field["name"]: field for field in yarn["fields"]}
    assert (fields["factor"]["required"], fields["beta_fast"]["default"]) == (True, 32.0)
    assert yarn["length_dependent"] is False


def test_a_schedule_of_the_users_own_is_explained_like_a_built_in_one(ran):
    own = own_schedules.__file__
    page = ran("schedules", f"{own}::Half").out
    assert "Slow only the slow half of the pairs." in page
    assert "| factor | float | 2       |" in page
    described = json.loads(ran("schedules", f"{own}::Stretching", "--json").out)
    assert (described["fields"], described["length_dependent"]) == ([], True)
    assert "own_schedules.py names no class; write path/to/file.py::Class" in ran("schedules", own, code=2).err


class Terminal(io.StringIO):
    """A stream that is looked at."""

    def isatty(self):
        return True


@pytest.mark.parametrize(("no_colour", "coloured"), [("", True), ("1", False)])
def test_a_terminal_has_the_answers_numbers_and_errors_in_colour(monkeypatch, checkpoint, texts, no_colour, coloured):
    words = ["eval", str(checkpoint), "--data", str(texts), "--lengths", "64,128", "--schedule", "yarn", "--quiet"]
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", no_colour)
    monkeypatch.setattr(sys, "stdout", out := Terminal())
    monkeypatch.setattr(sys, "stderr", err := Terminal())
    assert shell.main(words) == 0 and shell.main(["inspect", "./nowhere"]) == 2
    answer, _, table = out.getvalue().partition("\n|")
    assert ("\x1b[36m" in answer) is ("\x1b[31m" in err.getvalue()) is coloured and "\x1b" not in table
    said = [line for line in err.getvalue().splitlines() if line and "Loading weights" not in line]
    assert len(said) == 1  # the error alone
