"""``ropescale export MODEL --for ENGINE``: commands to serve a model, and the values that the engine computes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..engines import ENGINES
from ..output.formatting import markdown
from .completion import SpecText
from .options import (
    SCHEDULE,
    OneOf,
    Sections,
    flag,
    model_argument,
    option,
    print_result,
    put,
    request_sections,
    sectioned_command,
    tell,
)

if TYPE_CHECKING:
    from ..exporting import Export

_SECTIONS: Sections = {
    "The engine": [option("--for engine", None, "The engine to serve it with.", OneOf(list(ENGINES)), required=True)],
    **request_sections(option("--schedule", "SPEC", SCHEDULE, SpecText())),
    "The model": ["revision"],
    "The result": [flag("--command-only", "Print only the commands."), "as_json"],
}


@sectioned_command("export", _SECTIONS, model_argument())
def command(model: str, engine: str, command_only: bool, as_json: bool, **options: Any) -> None:
    """Show how to serve MODEL (a folder or a Hub id) in an engine, and the values that it computes.

    Prints the number of schedule fields that the engine honours, the command to paste, and, unless all are honoured, a
    table with a row per field: its status (honoured, recomputed with the engine's own number, dropped or unsupported),
    the computed value, and the evidence: served (a test serves such a model in that version and compares
    log-probabilities with transformers), run (a test runs the engine's code: whole models in mlx-lm, the rotary layer
    in vLLM and SGLang), source (its code was read) or docs. Nothing is loaded or written.

    Without --schedule MODEL is served unchanged: patched by ropescale, or with its vendor's scaling. With --schedule
    its weights are served with that schedule, without a patched folder.

    Exits with 1 if the engine cannot compute the schedule; the last line gives an alternative.

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
        raise DataError("command_only and as_json are mutually exclusive; leave one out", "command_only", "as_json")
    done = export(model, engine, options.pop("schedule"), **options)
    tell(note=done.notes, warning=done.warnings)
    if command_only and done.commands:
        put("\n".join(each.text for each in done.commands))
    elif not command_only:
        print_result(as_json, done.to_dict, lambda: _page(done))
    if done.refusal is not None:
        raise RunError(done.refusal)


def _page(done: Export) -> str:
    """Returns the number of honoured fields, the commands, and the table unless all are honoured."""
    kept = sum(row.status == "honoured" for row in done.rows)
    blocks = [command.fenced() for command in (*done.commands, *done.unscaled)]
    if kept == len(done.rows):
        ways = list(dict.fromkeys(row.how for row in done.rows))
        known = f"served in {done.served_version}" if ways == ["served"] else f"known from {' and '.join(ways)}"
        return "\n\n".join([f"{done.engine} {done.version}: all {kept} fields honoured; {known}.", *blocks])
    answer = f"{done.engine} {done.version}: {kept} of {len(done.rows)} fields honoured; see the table."
    header = ["field", "asked", "status", f"{done.engine} {done.version} computes", "known from"]
    rows = []
    for row in done.rows:
        field = row.field if row.version == done.version else f"{row.field} ({row.version})"
        how = f"served ({done.served_version})" if row.how == "served" else row.how
        rows.append([field, row.asked, row.status, row.computes, how])
    if len({row.layers for row in done.rows}) > 1:
        # A column for the layers only if they differ.
        header, rows = ["layers", *header], [[row.layers, *cells] for row, cells in zip(done.rows, rows)]
    return "\n\n".join([answer, *blocks, markdown(header, rows)])
