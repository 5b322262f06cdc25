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
    model_argument,
    print_result,
    request_options,
    shared_options,
    tell,
)
from .sections import in_sections

if TYPE_CHECKING:
    from ..engines.exported import FieldRow
    from ..exporting import Export

_SECTIONS = {"The engine": "engine", **REQUEST_SECTIONS, **MODEL_SECTION, "The result": "as_json"}


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
@shared_options("revision", "as_json")
def command(model: str, engine: str, as_json: bool, **options: Any) -> None:
    """Show how to serve MODEL (a folder or a Hub id) in an engine, and what that engine will compute.

    Prints the command to paste, and a table with a row per field of the schedule: honoured, recomputed (the engine has
    its own number), dropped or unsupported; what it computes; and how that is known: served (a test serves such a
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
    """
    from ..errors import RunError
    from ..exporting import export

    done = export(model, engine, options.pop("schedule"), **options)
    tell(note=done.notes, warning=done.warnings)
    print_result(as_json, done.to_dict, lambda: _page(done))
    if done.refusal is not None:
        raise RunError(done.refusal)


def _page(done: Export) -> str:
    return "\n\n".join([*(command.fenced() for command in (*done.commands, *done.unscaled)), _table(done)])


def _table(done: Export) -> str:
    """Returns the table of fields; a column for the layers only where there is more than one kind."""
    header = ["field", "asked", "status", f"{done.engine} {done.version} computes", "known from"]
    rows = [[_field(done, row), row.asked, row.status, row.computes, _how(done, row)] for row in done.rows]
    if len({row.layers for row in done.rows}) > 1:
        header, rows = ["layers", *header], [[row.layers, *cells] for row, cells in zip(done.rows, rows)]
    return markdown(header, rows)


def _field(done: Export, row: FieldRow) -> str:
    return row.field if row.version == done.version else f"{row.field} ({row.version})"


def _how(done: Export, row: FieldRow) -> str:
    return f"served ({done.served_version})" if row.how == "served" else row.how
