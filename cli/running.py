"""Runs a measurement for a command, prints and writes its result, by one process or by many."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click
from click.core import ParameterSource

from ..errors import DataError
from .options import REQUEST_OPTIONS, made, print_result, say
from .run_file import run_file

if TYPE_CHECKING:
    from ..evals.data.sources import TextSource
    from ..evals.parallel.processes import Sharing, World
    from ..evals.running.checkpoint import Checkpoint
    from ..evals.running.progress import Notes
    from ..evals.running.runner import Measurement
    from ..evals.servers.server import Server


class Printed(Protocol):
    """A result that can be printed and written."""

    def to_dict(self) -> object:
        """Returns it as plain data."""
        ...

    def summary(self) -> str:
        """Returns the answer and one table."""
        ...

    def to_markdown(self) -> str:
        """Returns all its tables."""
        ...

    def save(self, folder: Path, /, force: bool = False, files: Mapping[str, bytes] = ...) -> object:
        """Writes it into a folder."""
        ...


def notes() -> Notes:
    """Returns the notes of a run; only rank 0 prints."""
    from ..evals.parallel.processes import world
    from ..evals.running.progress import Notes

    return Notes(world().leads)


def asked_servers(options: Mapping[str, Any], model: str | None) -> tuple[list[Server], Checkpoint]:
    """Returns the servers of a command, and the checkpoint that they serve; none, and MODEL, where that is loaded here.

    Raises:
        DataError: half of it is given, both are, or an option that is for the other; not one schedule and one name for
            each server.
    """
    from ..evals.running.checkpoint import Checkpoint

    urls, tokenizer = options["servers"], options["tokenizer"]
    if not urls:
        names = ("served_as", "served_name", "tokenizer", "concurrency", "timeout")
        refuse_given("is for a server, and none is named; leave it out, or name one", "server", *names)
        if model is None:
            raise DataError("name a MODEL, or a server and its tokenizer", "server", "tokenizer")
        return [], made(Checkpoint, options, name=model)
    from ..evals.servers.server import Server

    of_each = {name: options[name] for name in ("served_as", "served_name")}
    for name, given in of_each.items():
        if given and len(given) != len(urls):
            raise DataError(f"{name} is given {len(given)} times, and there are {len(urls)} servers", name, "servers")
    ctx = click.get_current_context()
    for name in (str(each.name) for each in ctx.command.params if each.name in _LOCAL and not each.required):
        if ctx.get_parameter_source(name) in _GIVEN:
            raise DataError(f"{name} is for a model that is loaded here, not for a server; leave it out", name)
    if tokenizer is None:
        raise DataError("a server is given, and no tokenizer; name the checkpoint that it serves", "tokenizer")
    nobody = [None] * len(urls)
    each = zip(urls, of_each["served_as"] or nobody, of_each["served_name"] or nobody, strict=True)
    how = {name: options[name] for name in ("concurrency", "timeout")}
    servers = [Server(url, served_as, name=name, **how) for url, served_as, name in each]
    return servers, made(Checkpoint, options, name=tokenizer, weights=False)


def refuse_given(why: str, instead: str, *names: str) -> None:
    """Refuses given parameters of the command at work.

    Args:
        why: what follows the name in the message.
        instead: the parameter that would give them a meaning, or takes it.

    Raises:
        DataError: names the first.
    """
    ctx = click.get_current_context()
    for name in names:
        if ctx.get_parameter_source(name) in _GIVEN:
            raise DataError(f"{name} {why}", name, instead)


_GIVEN = (ParameterSource.COMMANDLINE, ParameterSource.DEFAULT_MAP)


_LOCAL = {
    *("model", "schedules", *REQUEST_OPTIONS, "dtype", "device", "batch_tokens"),
    *("tp", "device_map", "dry_run", "search", "search_tokens", "memory"),
}
"""Parameters of commands that measure for a model that is loaded here: a server has no use for them."""


def text_of(source: Sequence[str], options: Mapping[str, Any]) -> TextSource:
    """Makes the sources of text of a command, and how they are read."""
    from ..evals.data.prompts import PromptFields
    from ..evals.data.sources import ReadOptions, TextSource

    row = PromptFields(options.get("prompt_field"), options.get("answer_field"))
    asked = made(ReadOptions, {**options, "prompt_field": row if row != PromptFields() else None})
    return made(TextSource, options, names=source, asked=asked)


def measure(
    prepare: Callable[[World], Measurement[Printed]],
    folder_of: Callable[[str], Path],
    options: Mapping[str, Any],
    *,
    doing: str,
    source: Sequence[str] = (),
    sharing: Sharing | None = None,
) -> None:
    """Runs a measurement, writes its result, and prints it; neither decides about the other.

    Args:
        prepare: makes the measurement in one of the processes.
        folder_of: checks the folder to write into, before hours of work.
        doing: what the processes do, in a word.
        source: the texts, into whose folder nothing is written.
    """
    from ..evals.parallel.processes import together
    from ..evals.running.runner import carry_out
    from ..evals.store import refuse_if_busy

    out = options["out"]
    for name in ("fresh", "force"):
        if options[name] and out is None:
            raise DataError(f"{name} is given, and no folder to write into; name one", name, "out")
    with together(sharing) as group:
        here, folder = group.world, None if out is None else folder_of(out)
        if folder and any(
            os.path.isdir(each) and os.path.realpath(each) == os.path.realpath(folder) for each in source
        ):
            raise DataError(f"{out} holds the text that is measured; choose another folder", "out", "source")
        if folder is not None and here.leads:
            refuse_if_busy(folder)
        if here.launched and here.leads:
            say(f"{here} {doing}{here.hint}")

        def shown(result: Printed, kept: Path | None) -> None:
            where = "" if kept is None or kept.suffix == ".json" else f" or {kept / 'REPORT.md'}"
            short = lambda: f"{result.summary()}\n\nAll tables: --verbose{where}."  # noqa: E731
            page = result.to_markdown if options["verbose"] else short
            print_result(options["as_json"], result.to_dict, page, kept)

        try:
            measurement = prepare(here)
        except KeyboardInterrupt:
            if folder is not None and here.leads:
                say("the run stopped before it measured anything; the same command starts it again")
            raise
        carry_out(measurement, folder, options["fresh"], group, shown, options["force"], run_file())
        if folder is not None and here.leads:
            say(f"written to {folder}")
