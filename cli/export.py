"""``ropescale export MODEL --for ENGINE``: commands to serve a model, and the values that the engine computes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..configs.class_defaults import ALL_LAYERS
from ..engines import ENGINES
from ..output.formatting import listed, markdown
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
    "The engine": [option("--for engine", None, "The engine that serves MODEL.", OneOf(list(ENGINES)), required=True)],
    **request_sections(option("--schedule", "SPEC", SCHEDULE)),
    "The model": ["revision"],
    "The result": [
        flag("--command-only", "Print only the commands."),
        "as_json",
    ],
}


@sectioned_command("export", _SECTIONS, model_argument())
def command(model: str, engine: str, command_only: bool, as_json: bool, **options: Any) -> None:
    """Show how to serve MODEL (a folder or a Hub id) in an engine, and the values that the engine computes.

    Prints whether the engine computes the schedule as requested, a table of the fields that differ (recomputed with the
    engine's own number, dropped or unsupported), and the command to paste. The numbers come from
    a test that serves such a model in that version and compares log-probabilities with transformers, from a test that
    runs the engine's own code, or from the engine's source. Nothing is loaded or written.

    Without --schedule, MODEL is served with its own schedule, from `ropescale patch` or its vendor. With --schedule,
    its weights are served with that schedule; no patched folder is needed.

    Exits with 1 if the engine cannot compute the schedule (the last line gives an alternative), or if that is not known
    (the command is printed all the same).

    \b
    Examples:
      ropescale export qwen3-128k --for vllm
      ropescale export Qwen/Qwen3-8B --for sglang --schedule yarn --target-length 128k
      ropescale export ./llama --for llama.cpp --schedule yarn:factor=8
      ropescale export ./llama --for mlx-lm --schedule llama3:factor=8
      ropescale export qwen3-128k --for vllm --command-only | sh
    """
    from ..errors import DataError
    from ..exporting import export

    if command_only and as_json:
        raise DataError("command_only and as_json are mutually exclusive; leave one out", "command_only", "as_json")
    done = export(model, engine, options.pop("schedule"), **options)
    tell(note=done.notes, warning=done.warnings)
    if command_only and done.commands:
        put("\n".join(each.text for each in done.commands))
    elif not command_only:
        print_result(as_json, done.to_dict, lambda: _page(done))
    if done.error is not None:
        raise done.error


def _page(done: Export) -> str:
    """Returns whether the engine computes the schedule, a table of the fields that differ, and the commands."""
    known = {"served": f"served in {done.served_version}", "run": "tests run its code", "source": "its source was read"}
    computes = (
        f"differs in {listed(dict.fromkeys(row.field for row in done.rows))}" if done.rows else "all fields honoured"
    )
    claim = f"{computes}; {known[done.how]}" if done.how in known else "not known what it computes"
    blocks = [f"{done.engine.partition(' ')[0]} {done.version}: {claim}."]
    if done.rows:
        header, rows = ["field", "computes", "status"], [[row.field, row.computes, row.status] for row in done.rows]
        if any(row.layers != ALL_LAYERS for row in done.rows):
            header, rows = ["layers", *header], [[row.layers, *cells] for row, cells in zip(done.rows, rows)]
        blocks.append(markdown(header, rows))
    return "\n\n".join([*blocks, *(command.fenced() for command in done.commands)])
