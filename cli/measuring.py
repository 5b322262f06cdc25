"""Runs a command's measurement in one or many processes, and prints and writes the result."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import DataError
from .options import REQUEST_OPTIONS, made, print_result, refuse_given, say
from .run_file import run_file

if TYPE_CHECKING:
    from ..evals.data.sources import TextSource
    from ..evals.parallel.processes import World
    from ..evals.results.saving import Saved
    from ..evals.running.checkpoint import Checkpoint
    from ..evals.running.progress import Notes
    from ..evals.running.runner import Measurement
    from ..evals.servers.served_runs import ServedModel
    from ..evals.servers.server import Server


def notes() -> Notes:
    """Returns a run's notes, which only rank 0 prints."""
    from ..evals.parallel.processes import world
    from ..evals.running.progress import Notes

    return Notes(world().leads)


def asked_servers(options: Mapping[str, Any], model: str | None) -> tuple[list[Server], Checkpoint]:
    """Returns a command's servers and their checkpoint, or no servers and the checkpoint MODEL.

    Raises:
        DataError: both servers and MODEL are given, or neither; the servers' tokenizer is missing; an option does not
            apply; or the numbers of labels or names and of servers differ.
    """
    from ..evals.running.checkpoint import Checkpoint

    urls, tokenizer = options["servers"], options["tokenizer"]
    if not urls:
        if model is None:
            raise DataError("name a MODEL, or a server and its tokenizer", "server", "tokenizer")
        return [], made(Checkpoint, options, name=model)
    from ..evals.servers.server import Server

    count = len(urls)
    for name in ("served_as", "served_name"):
        if len(options[name]) not in (0, count):
            raise DataError(f"{name} is given {len(options[name])} times for {count} servers", name, "servers")
    local = (str(each.name) for each in click.get_current_context().command.params if not each.required)
    refuse_given("applies to a loaded model, not to a server; leave it out", "", *filter(_LOCAL.__contains__, local))
    if tokenizer is None:
        raise DataError("a server needs a tokenizer; name the checkpoint that it serves", "tokenizer")
    labels, names = (options[name] or [None] * count for name in ("served_as", "served_name"))
    how = {name: options[name] for name in ("concurrency", "timeout")}
    servers = [Server(url, label, name=name, **how) for url, label, name in zip(urls, labels, names, strict=True)]
    return servers, made(Checkpoint, options, name=tokenizer, weights=False)


def served_by(servers: Sequence[Server], checkpoint: Checkpoint) -> ServedModel:
    """Returns the checkpoint's model as these servers serve it, with its tokenizer."""
    from ..evals.servers.served_runs import ServedModel

    return ServedModel(servers, checkpoint, checkpoint.tokenizer())


_LOCAL = (
    *("model", "schedules", *REQUEST_OPTIONS, "dtype", "device", "batch_tokens"),
    *("tp", "device_map", "dry_run", "search", "search_tokens"),
)
"""Parameters of measuring commands that apply only to a loaded model, not to a server."""


def text_of(source: Sequence[str], options: Mapping[str, Any]) -> TextSource:
    """Builds a command's text source from its reading options."""
    from ..evals.data.prompts import PromptFields
    from ..evals.data.sources import ReadOptions, TextSource

    row = PromptFields(options.get("prompt_field"), options.get("answer_field"))
    reading = made(ReadOptions, {**options, "prompt_field": row if row != PromptFields() else None})
    return TextSource(source, reading, options["concat"])


def measure(
    prepare: Callable[[World], Measurement[Saved]],
    folder_of: Callable[[str], Path],
    options: Mapping[str, Any],
    *,
    doing: str,
    source: Sequence[str] = (),
) -> None:
    """Runs a measurement, writes its result, and prints it even if it cannot be written.

    Args:
        prepare: a function that prepares the measurement in a process.
        folder_of: a function that checks the output folder, before hours of work, and returns its path.
        doing: the processes' work in a word, such as ``measuring``.
        source: the texts; a folder with a text cannot be the output folder.
    """
    from ..evals.parallel.processes import Sharing, together
    from ..evals.running.runner import carry_out
    from ..evals.store import refuse_if_busy

    out = options["out"]
    for name in ("fresh", "force"):
        if options[name] and out is None:
            raise DataError(f"{name} needs an output folder; name one", name, "out")
    with together(made(Sharing, options)) as group:
        here, folder = group.world, None if out is None else folder_of(out)
        if folder and any(os.path.isdir(each) and os.path.samefile(each, folder) for each in source if folder.exists()):
            raise DataError(f"{out} contains the measured text; choose another folder", "out", "source")
        if folder is not None and here.leads:
            refuse_if_busy(folder)
        if here.launched and here.leads:
            say(f"{here} {doing}")

        def shown(result: Saved, kept: Path | None) -> None:
            where = "" if kept is None or kept.suffix == ".json" else f" or {kept / 'REPORT.md'}"
            short = lambda: f"{result.summary()}\n\nAll tables: --verbose{where}."  # noqa: E731
            print_result(options["as_json"], result.to_dict, result.to_markdown if options["verbose"] else short, kept)

        try:
            measurement = prepare(here)
        except KeyboardInterrupt:
            if folder is not None and here.leads:
                say("the run stopped before the first measurement; run the same command to restart it")
            raise
        corpus = getattr(measurement, "corpus", None)
        if corpus and options.get("chat_template") and not corpus.count("chat"):
            raise DataError("chat_template has no effect: no document is a chat; leave it out", "chat_template")
        carry_out(measurement, folder, options["fresh"], group, shown, options["force"], run_file())
        if folder is not None and here.leads:
            say(f"written to {folder}")
