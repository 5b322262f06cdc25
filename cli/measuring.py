"""Turns a command's options into one call of a measurement, and prints the result."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from ..errors import DataError, RunError
from ..files import local_path
from ..request import RequestOptions
from .options import print_json, refuse_given, say, show
from .run_file import write_run_file

if TYPE_CHECKING:
    from ..evals.backends.server import Server
    from ..evals.data.sources import TextSource
    from ..evals.results.saving import Saved

Options = Mapping[str, Any]
"""The options of a command, by name."""

Keywords = dict[str, Any]
"""Keywords for a measurement."""

T = TypeVar("T")


def made(kind: Callable[..., T], options: Options, **more: object) -> T:
    """Creates a dataclass from the options that have the names of its fields, and from further fields."""
    same = {name: options[name] for name in signature(kind).parameters if name in options}
    return kind(**{**same, **more})


def model_of(options: Options, model: str | None) -> Keywords:
    """Returns the keywords ``model`` and ``path`` of a measurement: the checkpoint MODEL, or servers and the checkpoint
    that they serve.

    Raises:
        DataError: both servers and MODEL are given, or neither; the servers' tokenizer is missing; an option does not
            apply; or the numbers of labels or names and of servers differ.
    """
    from ..evals.backends.opening import Checkpoint

    urls = options["servers"]
    tokenizer = options["tokenizer"]
    if not urls:
        if model is None:
            raise DataError("name a MODEL, or a server and its tokenizer", "server", "tokenizer")
        return {"model": made(Checkpoint, options, name=model)}
    count = len(urls)
    for name in ("served_as", "served_name"):
        if len(options[name]) not in (0, count):
            raise DataError(f"{name} is given {len(options[name])} times for {count} servers", name, "servers")
    local = (str(each.name) for each in click.get_current_context().command.params if not each.required)
    refuse_given("applies to a loaded model, not to a server; leave it out", "", *filter(_LOCAL.__contains__, local))
    if tokenizer is None:
        raise DataError("a server needs a tokenizer; name the checkpoint that it serves", "tokenizer")
    return {"model": _servers(options), "path": made(Checkpoint, options, name=tokenizer, weights=False)}


def _servers(options: Options) -> list[Server]:
    from ..evals.backends.server import Server

    urls = options["servers"]
    unnamed = [None] * len(urls)
    named = zip(urls, options["served_as"] or unnamed, options["served_name"] or unnamed, strict=True)
    servers = []
    for url, label, name in named:
        servers.append(Server(url, label, name=name, concurrency=options["concurrency"], timeout=options["timeout"]))
    return servers


def keywords_for(function: Callable[..., object], options: Options) -> Keywords:
    """Returns the command's options that a measurement takes under the same name, and whether it shows progress."""
    own = ("model", "documents", "tokenizer", "source", "path")
    if options["quiet"]:
        os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"  # also read by transformers, when it is imported
    same = {name: options[name] for name in signature(function).parameters if name in options and name not in own}
    return {**same, "progress": not options["quiet"]}


_LOCAL = (
    *("model", "schedules", *RequestOptions.__annotations__, "dtype", "device", "attn_implementation", "batch_tokens"),
    *("tp", "device_map", "search", "search_tokens"),
)
"""Parameters of measuring commands that apply only to a loaded model, not to a server."""


def text_of(source: Sequence[str], options: Options) -> TextSource:
    """Builds a command's text source from its reading options."""
    from ..evals.data.prompts import PromptFields
    from ..evals.data.sources import ReadOptions, TextSource

    row = PromptFields(options.get("prompt_field"), options.get("answer_field"))
    reading = made(ReadOptions, {**options, "prompt_field": row if row != PromptFields() else None})
    return TextSource(source, reading, options["concat"])


def measure(
    function: Callable[..., Saved], keywords: Keywords, options: Options, folder_of: Callable[[str], Path] = local_path
) -> None:
    """Makes one measurement, and prints its result, even if it cannot be written.

    Args:
        folder_of: returns the folder of an output, which is then told.
    """
    from ..evals.parallel.processes import world
    from ..evals.running.runner import NotWritten

    out = options["out"]
    leads = world().leads
    try:
        result = function(**keywords)
    except NotWritten as error:
        _show(cast("Saved", error.result), None, options)
        raise
    except (RunError, KeyboardInterrupt):  # what is finished may be kept
        if out is not None and leads:
            write_run_file(folder_of(out))
        raise
    if not leads:
        return
    folder = None if out is None else folder_of(out)
    _show(result, folder, options)
    if folder is not None:
        write_run_file(folder)
        if not options["quiet"]:
            say(f"written to {folder}")


def _show(result: Saved, kept: Path | None, options: Options) -> None:
    """Prints a result; ``kept`` is the folder that it was written to."""

    if options["as_json"]:
        print_json(result.to_dict(), kept)
    elif options["verbose"]:
        show(result.page(), kept)
    else:
        where = "" if kept is None else f" or {kept / 'REPORT.md'}"
        show([*result.summary_page(), f"All tables: --verbose{where}."], kept, is_answer=True)
