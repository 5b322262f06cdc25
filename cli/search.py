"""``ropescale search MODEL --target-length N --data SRC -o factors.json``: learns a schedule with frozen weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from .measuring import measure, notes, text_of
from .options import (
    MODEL_SECTION,
    PATCHING,
    READING,
    SOURCE,
    OneOf,
    Real,
    Sections,
    Whole,
    data_option,
    flag,
    made,
    model_argument,
    option,
    out_option,
    sectioned_command,
)
from .run_file import CONFIG

if TYPE_CHECKING:
    from ..evals.parallel.processes import World
    from ..evals.searching.search_run import SearchRun

_SECTIONS: Sections = {
    "Search": [
        data_option(
            "File, folder, JSONL, parquet, Hub NAME[:CONFIG] or -. May be repeated. Not for --objective keys.",
            required=False,
        ),
        option(
            "--objective",
            None,
            "Predict all tokens of --data, or only answers to prompts with a hidden key, as in `ropescale retrieval`.",
            OneOf(["text", "keys"]),
            default="text",
        ),
        option("--target-length", "N", "The target context, such as 32k.", required=True),
        option("--budget-tokens", "N", "The total number of tokens to feed.", default=500_000),
        option(
            "--within", "W", "The weight of tokens within the trained length; other tokens have 1.", Real(), default=2.0
        ),
        flag("--keep-short", "Use two tables: the model's own up to the trained length, and another beyond."),
        option("--for engine", "ENGINE", "Search the schedules of an engine: vllm, sglang, mlx-lm, ..."),
        option("--seed", "N", "Seed of the text's order, and of the held-out part.", Whole(0), default=0),
    ],
    "Target of the schedule": ["layers original_length replace_scaling on_top"],
    "The text": ["split text_field glob concat max_docs streaming split_special_tokens bos"],
    "The result": [
        CONFIG,
        out_option("Write the schedule here, and the run into the sibling folder FILE-search.", "FILE.json"),
        flag("--fresh", "Restart the search in the folder, instead of resuming."),
        "force verbose as_json",
    ],
    **MODEL_SECTION,
}


@sectioned_command("search", _SECTIONS, model_argument())
def command(model: str, **options: Any) -> None:
    """Learn the schedule with which MODEL predicts a text best at a length, with frozen weights.

    The search starts at YaRN's default, and varies the ramp's start and end, the factor and the attention scale. The
    result is the schedule with the lowest loss on a held-out part of the text. Every command with --schedule takes the
    file that -o writes.

    With --objective keys no text is read: generated prompts of the target length ask for a hidden number, and only the
    answer tokens count. The model must be able to answer within its trained length; check this with `ropescale
    retrieval`.

    With -o, every step is stored: the same command resumes after any interruption.

    Many processes share the windows: `torchrun --nproc_per_node 8 -m ropescale search ...`. The result does not depend
    on their number.
    """
    from ..evals.running.checkpoint import Checkpoint
    from ..evals.searching.options import SearchOptions, plan_of_start, schedule_file

    _check_objective(options)
    out = options["out"]
    if out is not None:
        schedule_file(out)
    names, target = options.pop("source"), options["target_length"]
    checkpoint = made(Checkpoint, options, name=model)
    chosen = made(
        SearchOptions,
        options,
        patching={name: options[name] for name in PATCHING},
        path=checkpoint,
        progress=notes(),
    )
    on_top, patching = options["on_top"], chosen.patching
    plan_of_start(checkpoint.configs[on_top], target, patching)  # check the arguments before importing torch
    from ..evals.searching.results import files_of  # imported after the checks, because it needs torch

    file = None if out is None else files_of(out)[0]

    def prepare(here: World) -> SearchRun:
        from ..evals.searching import search_run

        text = text_of(names, options)
        return search_run.prepare(checkpoint, text if names else None, target, options["bos"], chosen, here, file)

    measure(prepare, lambda name: files_of(name)[1], options, source=names, doing="searching")


def _check_objective(options: Mapping[str, Any]) -> None:
    """Raises an error if a text is given for an objective that reads none, or is missing for one that needs it."""
    from ..errors import DataError

    if options["objective"] == "keys":
        for name in filter(options.get, ("source", *SOURCE, "max_docs", *READING)):
            raise DataError(f"the objective keys reads no text; drop {name}", name, "objective")
    elif not options["source"]:
        raise click.MissingParameter(ctx=click.get_current_context(), param_hint="'--data'", param_type="option")
