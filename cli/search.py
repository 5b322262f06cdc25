"""``ropescale search MODEL --target-length N --data SRC -o factors.json``: a schedule learned with weights frozen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .completion import Place
from .options import (
    MODEL_SECTION,
    READING,
    REQUEST_OPTIONS,
    Length,
    OneOf,
    bos_option,
    json_option,
    loading_options,
    model_argument,
    reading_options,
)
from .running import measure, notes
from .sections import in_sections

if TYPE_CHECKING:
    from ..evals.data.sources import TextSource
    from ..evals.parallel.processes import World
    from ..evals.searching.running import SearchRun
    from ..request import RequestOptions

_SECTIONS = {
    "What is searched": "source objective haystack target_length method budget_tokens numbers within keep_short engine "
    "seed",
    "Where the schedule goes": "layers original_length replace_scaling on_top",
    "The text": "split text_field glob encoding concat max_docs streaming split_special_tokens bos",
    "The result": "out fresh as_json",
    **MODEL_SECTION,
}


@click.command("search", cls=in_sections(_SECTIONS))
@model_argument()
@click.option(
    "--data",
    "source",
    type=Place(),
    multiple=True,
    metavar="SRC",
    help="File, folder, JSONL, parquet, Hub NAME[:CONFIG] or -. May be repeated. None with --objective keys.",
)
@click.option(
    "--objective",
    type=OneOf(["text", "keys"]),
    default="text",
    show_default=True,
    help="All tokens of --data, or answers alone: prompts with a hidden key, as `ropescale passkey` asks.",
)
@click.option("--haystack", type=Place(), metavar="FILE", help="Hide the keys in this text, not in generated ones.")
@click.option("--target-length", type=Length(), required=True, metavar="N", help="The context wanted, such as 32k.")
@click.option(
    "--method",
    type=OneOf(["gradient", "evolution", "cma"]),
    default="gradient",
    show_default=True,
    help="evolution is LongRoPE's; cma is CMA-ES (extra search).",
)
@click.option(
    "--budget-tokens", type=Length(), default=500_000, show_default=True, metavar="N", help="Tokens to feed in all."
)
@click.option(
    "--numbers", type=click.IntRange(1), metavar="N", help="4 (default), 2, or one more than there are pairs."
)
@click.option(
    "--within",
    type=float,
    default=2.0,
    show_default=True,
    metavar="W",
    help="The weight of a token within the trained length; others have 1.",
)
@click.option("--keep-short", is_flag=True, help="Two tables: the model's own up to the trained length, one beyond.")
@click.option("--for", "engine", metavar="ENGINE", help="Search what an engine computes: vllm, sglang, mlx-lm, ...")
@REQUEST_OPTIONS["layers"]
@REQUEST_OPTIONS["original_length"]
@REQUEST_OPTIONS["replace_scaling"]
@REQUEST_OPTIONS["on_top"]
@reading_options()
@click.option("--concat", is_flag=True, help="Join all documents into one, a blank line between two.")
@click.option("--max-docs", type=click.IntRange(1), metavar="N", help="At most this many documents.")
@click.option("--streaming", is_flag=True, help="Read a Hub dataset only as far as --max-docs needs.")
@click.option("--split-special-tokens", is_flag=True, help="Special tokens named in the text are text like any other.")
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    metavar="N",
    help="Of the order of the text, and of what is held out.",
)
@bos_option()
@loading_options()
@json_option()
@click.option(
    "-o",
    "--out",
    type=Place(),
    metavar="FILE.json",
    help="Write the schedule here, and the run into the folder FILE-search beside it.",
)
@click.option("--fresh", is_flag=True, help="Search again what is kept in the folder, instead of continuing.")
def command(model: str, out: str | None, fresh: bool, as_json: bool, **options: Any) -> None:
    """Learn the schedule under which MODEL predicts a text best at a length, with its weights frozen.

    It starts at YaRN's default, and searches the ramp's start and end, the factor and the attention scale. Part of the
    text is held out; the schedule that does best on it is the result. The file is a schedule for --schedule of every
    command.

    With --objective keys no text is read: generated prompts of the target length ask for a hidden number, and only the
    tokens of the answers count. The model must be able to answer within its trained length; `ropescale passkey` shows
    whether it is.

    With -o, every step is kept: the same command again continues where it was, whatever stopped it.

    Many processes share the windows: `torchrun --nproc_per_node 8 -m ropescale search ...`. The result does not depend
    on how many.
    """
    _check_early(model, out, options)
    from ..evals.searching.results import files_of  # after what needs no torch

    file, _ = (None, None) if out is None else files_of(out)

    def prepare(here: World) -> SearchRun:
        return _prepared(model, options, here, file)

    measure(prepare, lambda name: files_of(name)[1], out=out, fresh=fresh, as_json=as_json, doing="searching")


def _check_early(model: str, out: str | None, options: Mapping[str, Any]) -> None:
    """Refuses what can be refused in a moment, before the libraries are loaded."""
    from ..evals.searching.starting import check_early, schedule_file

    _check_objective(options)
    if out is not None:
        schedule_file(out)
    patching: RequestOptions = {name: options[name] for name in _PATCHING}  # type: ignore[assignment]
    check_early(model, options["revision"], options["target_length"], patching, options["engine"], options["within"])


def _check_objective(options: Mapping[str, Any]) -> None:
    """Refuses what does not go with the objective: keys read no text, and a text has to be there."""
    from ..errors import DataError
    from ..evals.searching.starting import NONE_WITHIN, NOTHING_HIDDEN, WITHIN

    if options["objective"] == "keys":
        unused = ("source", "concat", "streaming", "split_special_tokens", "max_docs", *READING)
        for name in filter(options.get, unused):
            raise DataError(f"{name} is given, and objective='keys' reads no text; drop it", name, "objective")
        if options["within"] != WITHIN:
            raise DataError(NONE_WITHIN, "within", "objective")
        return
    if options["haystack"] is not None:
        raise DataError(f"haystack is given, and {NOTHING_HIDDEN}", "haystack", "objective")
    if not options["source"]:
        context = click.get_current_context()
        raise click.MissingParameter(
            ctx=context, param=next(each for each in context.command.params if each.name == "source")
        )


_LOADING = ("revision", "trust_remote_code", "dtype", "device")
_SOURCE = ("concat", "streaming", "split_special_tokens")
_PATCHING = ("layers", "original_length", "replace_scaling", "on_top")


def _prepared(model: str, options: dict[str, Any], here: World, file: Path | None) -> SearchRun:
    from ..evals.data.sources import joined, read_texts
    from ..evals.running.preparing import Checkpoint
    from ..evals.searching.options import SearchOptions
    from ..evals.searching.preparing import prepare
    from ..request import RequestOptions

    checkpoint = Checkpoint(model, **{name: options.pop(name) for name in _LOADING})
    text, haystack = _text(options), options.pop("haystack")
    target, bos = options.pop("target_length"), options.pop("bos")
    patching = RequestOptions(**{name: options.pop(name) for name in _PATCHING})
    hidden = None if haystack is None else joined(read_texts(haystack))
    chosen = SearchOptions(**options, haystack=hidden, source=haystack, patching=patching, progress=notes(here))
    return prepare(checkpoint, text, target, bos, chosen, here, file)


def _text(options: dict[str, Any]) -> TextSource | None:
    """Takes the options that say what is read, and returns it; None for nothing."""
    from ..evals.data.sources import ReadOptions, TextSource

    names: Sequence[str] = options.pop("source")
    asked = {name: options.pop(name) for name in READING}
    how = {name: options.pop(name) for name in _SOURCE}
    return TextSource(names, ReadOptions(**asked), **how) if names else None
