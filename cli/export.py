"""``ropescale export MODEL --for ENGINE``: commands to serve it, and what that engine will compute."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..engines import ENGINES
from ..output.formatting import markdown
from .options import (
    MODEL_SECTION,
    REQUEST_SECTIONS,
    OneOf,
    in_sections,
    model_argument,
    print_result,
    put,
    request_options,
    shared_options,
    tell,
)

if TYPE_CHECKING:
    from ..exporting import Export

_SECTIONS = {"The engine": "engine", **REQUEST_SECTIONS, **MODEL_SECTION, "The result": "command_only as_json"}


@click.command("export", cls=in_sections(_SECTIONS))
@model_argument()
@click.option(
    "--for",
    "engine",
    type=OneOf(list(ENGINES)),
    required=True,
    help="The engine to serve it with.",
)
@request_options()
@click.option("--command-only", is_flag=True, help="Print what is pasted, and nothing else.")
@shared_options("revision", "as_json")
def command(model: str, engine: str, command_only: bool, as_json: bool, **options: Any) -> None:
    """Show how to serve MODEL (a folder or a Hub id) in an engine, and what that engine will compute.

    Says how many fields of the schedule the engine honours, prints the command to paste, and, where not all of them are
    honoured, a table with a row per field: honoured, recomputed (the engine has its own number), dropped or
    unsupported; what it computes; and how that is known: served (a test serves such a
    model in that version and compares log-probabilities with transformers), run (a test runs the engine's code: whole
    models in mlx-lm, the rotary layer in vLLM and SGLang), source (its code was read) or docs. Nothing is
    loaded or written.

    Without --schedule MODEL is served as it is: patched by ropescale, or with its vendor's scaling. With --schedule
    its weights are served under that schedule, and no patched folder is needed.

    Exits with 1 where the engine cannot compute the schedule at all; the last line says what to do instead.

    \b
    Examples:
      ropescale export qwen3-128k --for vllm
      ropescale export Qwen/Qwen3-8B --for sglang --schedule yarn --target-length 128k
      ropescale export ./llama --for llama.cpp --schedule yarn:factor=8
      ropescale export ./llama --for mlx-lm --schedule llama3:factor=8
      ropescale export qwen3-128k --for vllm --command-only | sh
    """
    from ..errors import DataError, RunError
    from ..exporting import export

    if command_only and as_json:
        raise DataError("command_only and as_json both say what is printed; leave one out", "command_only", "as_json")
    done = export(model, engine, options.pop("schedule"), **options)
    tell(note=done.notes, warning=done.warnings)
    if command_only and done.commands:
        put("\n".join(each.text for each in done.commands))
    elif not command_only:
        print_result(as_json, done.to_dict, lambda: _page(done))
    if done.refusal is not None:
        raise RunError(done.refusal)


def _page(done: Export) -> str:
    """Returns how many fields are honoured, the commands, and the table where not all of them are."""
    kept = sum(row.status == "honoured" for row in done.rows)
    ways = list(dict.fromkeys(row.how for row in done.rows))
    known = f"served in {done.served_version}" if ways == ["served"] else f"known from {' and '.join(ways)}"
    answer = f"{done.engine} {done.version}: all {kept} fields honoured; {known}."
    if kept < len(done.rows):
        answer = f"{done.engine} {done.version}: {kept} of {len(done.rows)} fields honoured; the table has each."
    blocks = [command.fenced() for command in (*done.commands, *done.unscaled)]
    return "\n\n".join([answer, *blocks, *([_table(done)] if kept < len(done.rows) else [])])


def _table(done: Export) -> str:
    """Returns the table of fields; a column for the layers only where there is more than one kind."""
    header = ["field", "asked", "status", f"{done.engine} {done.version} computes", "known from"]
    rows = []
    for row in done.rows:
        field = row.field if row.version == done.version else f"{row.field} ({row.version})"
        how = f"served ({done.served_version})" if row.how == "served" else row.how
        rows.append([field, row.asked, row.status, row.computes, how])
    if len({row.layers for row in done.rows}) > 1:
        header, rows = ["layers", *header], [[row.layers, *cells] for row, cells in zip(done.rows, rows)]
    return markdown(header, rows)
