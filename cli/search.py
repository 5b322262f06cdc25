"""``ropescale search MODEL --target-length N --data SRC -o factors.json``: a schedule learned with weights frozen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from .completion import Place
from .options import (
    MODEL_SECTION,
    PATCHING,
    READING,
    SOURCE,
    Length,
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
from .running import measure, notes, text_of

if TYPE_CHECKING:
    from ..evals.parallel.processes import World
    from ..evals.searching.running import SearchRun

_SECTIONS: Sections = {
    "What is searched": [
        data_option(
            "File, folder, JSONL, parquet, Hub NAME[:CONFIG] or -. May be repeated. None with --objective keys.",
            required=False,
        ),
        option(
            "--objective",
            None,
            "All tokens of --data, or answers alone: prompts with a hidden key, as `ropescale retrieval` asks.",
            OneOf(["text", "keys"]),
            default="text",
            show_default=True,
        ),
        option("--haystack", "FILE", "Hide the keys in this text, not in generated ones.", Place()),
        option("--target-length", "N", "The context wanted, such as 32k.", Length(), required=True),
        option("--budget-tokens", "N", "Tokens to feed in all.", Length(), default=500_000, show_default=True),
        option("--numbers", "N", "4, or 2 (the factor and the scale).", Whole(1), default=4, show_default=True),
        option(
            "--within",
            "W",
            "The weight of a token within the trained length; others have 1.",
            Real(),
            default=2.0,
            show_default=True,
        ),
        flag("--keep-short", "Two tables: the model's own up to the trained length, one beyond."),
        option("--for engine", "ENGINE", "Search what an engine computes: vllm, sglang, mlx-lm, ..."),
        option(
            "--seed", "N", "Of the order of the text, and of what is held out.", Whole(0), default=0, show_default=True
        ),
    ],
    "Where the schedule goes": ["layers original_length replace_scaling on_top"],
    "The text": ["split text_field glob encoding concat max_docs streaming split_special_tokens bos"],
    "The result": [
        CONFIG,
        out_option("Write the schedule here, and the run into the folder FILE-search beside it.", "FILE.json"),
        flag("--fresh", "Search again what is kept in the folder, instead of continuing."),
        "force verbose as_json",
    ],
    **MODEL_SECTION,
}


@sectioned_command("search", _SECTIONS, model_argument())
def command(model: str, **options: Any) -> None:
    """Learn the schedule under which MODEL predicts a text best at a length, with its weights frozen.

    It starts at YaRN's default, and searches the ramp's start and end, the factor and the attention scale. Part of the
    text is held out; the schedule that does best on it is the result. The file is a schedule for --schedule of every
    command.

    With --objective keys no text is read: generated prompts of the target length ask for a hidden number, and only the
    tokens of the answers count. The model must be able to answer within its trained length; `ropescale retrieval` shows
    whether it is.

    With -o, every step is kept: the same command again continues where it was, whatever stopped it.

    Many processes share the windows: `torchrun --nproc_per_node 8 -m ropescale search ...`. The result does not depend
    on how many.
    """
    from ..evals.data.sources import joined, read_texts
    from ..evals.running.checkpoint import Checkpoint
    from ..evals.searching.options import SearchOptions, plan_of_start, schedule_file

    _check_objective(options)
    out = options["out"]
    if out is not None:
        schedule_file(out)
    names, target, haystack = options.pop("source"), options["target_length"], options.pop("haystack")
    checkpoint = made(Checkpoint, options, name=model)
    chosen = made(
        SearchOptions,
        options,
        patching={name: options[name] for name in PATCHING},
        haystack=joined(read_texts(haystack)) if haystack and options["objective"] == "keys" else haystack,
        source=haystack,
        path=checkpoint,
        progress=notes(),
    )
    on_top, patching = options["on_top"], chosen.patching
    plan_of_start(checkpoint.configs[on_top], target, patching)  # refuses what can be refused without torch
    from ..evals.searching.results import files_of  # after what needs no torch

    file = None if out is None else files_of(out)[0]

    def prepare(here: World) -> SearchRun:
        from ..evals.searching import running

        text = text_of(names, options)
        return running.prepare(checkpoint, text if names else None, target, options["bos"], chosen, here, file)

    measure(prepare, lambda name: files_of(name)[1], options, source=names, doing="searching")


def _check_objective(options: Mapping[str, Any]) -> None:
    """Refuses a text where the objective reads none, and no text where it reads one."""
    from ..errors import DataError

    if options["objective"] == "keys":
        for name in filter(options.get, ("source", *SOURCE, "max_docs", *READING)):
            raise DataError(f"{name} is given, and the objective keys reads no text; drop it", name, "objective")
    elif options["haystack"] is None and not options["source"]:
        raise click.MissingParameter(ctx=click.get_current_context(), param_hint="'--data'", param_type="option")
