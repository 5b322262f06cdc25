"""Runs a measurement for a command, prints and writes its result, by one process or by many."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click
from click.core import ParameterSource

from ..errors import DataError
from .options import (
    LOADING,
    READING,
    SOURCE,
    Decorator,
    force_option,
    out_option,
    print_result,
    say,
    shared_options,
    take,
    verbose_option,
)
from .run_file import run_file

if TYPE_CHECKING:
    from ..evals.data.sources import TextSource
    from ..evals.parallel.processes import Sharing, World
    from ..evals.running.preparing import Checkpoint
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


@dataclass(frozen=True, kw_only=True)
class ResultOptions:
    """Where a command that measures writes its result, and how it prints it."""

    out: str | None
    fresh: bool
    force: bool
    as_json: bool
    verbose: bool


def result_options(out: str, fresh: str, metavar: str = "OUT") -> Decorator[Callable[..., None]]:
    """Adds ``--out``, ``--fresh``, ``--verbose``, ``--force`` and ``--json``, which make the parameter ``result``.

    Args:
        out, fresh: the help of these two.
        metavar: how the help names what is written.
    """

    def add(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(**options: object) -> None:
            chosen = ResultOptions(**take(options, [each.name for each in fields(ResultOptions)]))
            command(**options, result=chosen)

        with_json: Decorator[Callable[..., None]] = shared_options("as_json")
        again = click.option("--fresh", is_flag=True, help=fresh)
        return with_json(out_option(out, metavar)(again(verbose_option()(force_option()(run)))))

    return add


def notes(here: World) -> Notes:
    """Returns the notes of a run; only rank 0 prints."""
    from ..evals.running.progress import Notes

    return Notes(here.leads)


def checkpoint_of(model: str, options: dict[str, Any], weights: bool = True) -> Checkpoint:
    """Takes out of a command's parameters how the model is loaded; without weights where a server has them."""
    from ..evals.running.preparing import Checkpoint

    return Checkpoint(model, **take(options, (*LOADING, "device_map", "tp", "chat_template")), weights=weights)


def servers_of(options: dict[str, Any]) -> list[Server]:
    """Takes the servers out of a command's parameters.

    Raises:
        DataError: not one schedule and one name for each, or none and something is said of them.
    """
    urls = options.pop("servers")
    of_each = {name: options.pop(name) for name in ("served_as", "served_name")}
    for name, given in of_each.items():
        if given and len(given) != len(urls):
            raise DataError(f"{name} is given {len(given)} times, and there are {len(urls)} servers", name, "servers")
    how = take(options, ("concurrency", "timeout"))
    if not urls:
        return []
    from ..evals.servers.server import Server

    nobody = [None] * len(urls)
    each = zip(urls, of_each["served_as"] or nobody, of_each["served_name"] or nobody, strict=True)
    return [Server(url, served_as, name=name, **how) for url, served_as, name in each]


def asked_servers(options: dict[str, Any], model: str | None, allowed: Iterable[str]) -> tuple[list[Server], str]:
    """Takes the servers of a command, and the checkpoint that they serve; none, and MODEL, where that is loaded here.

    Args:
        allowed: the parameters that servers have a use for.

    Raises:
        DataError: half of it is given, both are, or an option that is for the other.
    """
    servers, tokenizer = servers_of(options), options.pop("tokenizer")
    if not servers:
        names = ("served_as", "served_name", "tokenizer", "concurrency", "timeout")
        refuse_given("is for a server, and none is named; leave it out, or name one", "server", *names)
        if model is None:
            raise DataError("name a MODEL, or a server and its tokenizer", "server", "tokenizer")
        return [], model
    refuse_beside_servers(*allowed)
    if tokenizer is None:
        raise DataError("a server is given, and no tokenizer; name the checkpoint that it serves", "tokenizer")
    return servers, tokenizer


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


def refuse_beside_servers(*allowed: str) -> None:
    """Refuses every given parameter of the command at work but these: they are for a model that is loaded here.

    Raises:
        DataError: names the first.
    """
    ctx = click.get_current_context()
    for each in ctx.command.params:
        name = str(each.name)
        if name not in allowed and ctx.get_parameter_source(name) in _GIVEN:
            raise DataError(f"{name} is for a model that is loaded here, not for a server; leave it out", name)


def text_of(source: Sequence[str], options: dict[str, Any]) -> TextSource:
    """Takes out of a command's parameters how its sources of text are read."""
    from ..evals.data.prompts import PromptFields
    from ..evals.data.sources import ReadOptions, TextSource

    fields = PromptFields(options.pop("prompt_field", None), options.pop("answer_field", None))
    asked = ReadOptions(**take(options, READING), prompt_field=fields if fields != PromptFields() else None)
    return TextSource(source, asked, **take(options, SOURCE))


def measure(
    prepare: Callable[[World], Measurement[Printed]],
    folder_of: Callable[[str], Path],
    options: ResultOptions,
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

    out = options.out
    for name in ("fresh", "force"):
        if getattr(options, name) and out is None:
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
            print_result(options.as_json, result.to_dict, result.to_markdown if options.verbose else short, kept)

        try:
            measurement = prepare(here)
        except KeyboardInterrupt:
            if folder is not None and here.leads:
                say("the run stopped before it measured anything; the same command starts it again")
            raise
        carry_out(measurement, folder, options.fresh, group, shown, options.force, run_file())
        if folder is not None and here.leads:
            say(f"written to {folder}")
