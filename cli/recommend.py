"""``ropescale recommend MODEL --target-length N --data SRC``: the schedule for a model and a text, measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from .completion import Place, SpecText
from .options import (
    MODEL_SECTION,
    READING,
    REQUEST_OPTIONS,
    Length,
    bos_option,
    json_option,
    loading_options,
    model_argument,
    reading_options,
)
from .running import measure, notes
from .sections import in_sections

if TYPE_CHECKING:
    from ..evals.parallel.processes import World
    from ..evals.recommending.running import RecommendRun
    from ..request import RequestOptions

_SECTIONS = {
    "What is wanted": "target_length source short_weight lengths tolerance",
    "What is tried": "schedules search search_tokens engine truncation truncation_stride layers original_length",
    "Where the model is already scaled": "replace_scaling on_top",
    "The text": "split text_field score glob encoding concat min_tokens max_docs windows budget_tokens bos",
    "The result": "memory out fresh as_json",
    **MODEL_SECTION,
    "How it is fed": "batch_tokens",
}

_REQUEST = ("layers", "original_length", "replace_scaling", "on_top")


def _request_options(command: Any) -> Any:
    for name in reversed(_REQUEST):
        command = REQUEST_OPTIONS[name](command)
    return command


@click.command("recommend", cls=in_sections(_SECTIONS))
@model_argument()
@click.option("--target-length", type=Length(), required=True, metavar="N", help="The context wanted, such as 32k.")
@click.option(
    "--data",
    "source",
    type=Place(),
    required=True,
    multiple=True,
    metavar="SRC",
    help="File, folder, JSONL, parquet, Hub NAME[:CONFIG] or -. May be repeated.",
)
@click.option(
    "--short-weight",
    type=float,
    metavar="W",
    help="Weight of the loss within the trained length, from 0 to below 1 (default: 0.1).",
)
@click.option("--lengths", metavar="N:W,...", help="Weights of several lengths instead: 2k:0.7,32k:0.3.")
@click.option(
    "--tolerance", type=float, metavar="NATS", help="Schedules closer than this are equally good (default: 0.005)."
)
@click.option(
    "--schedule",
    "schedules",
    type=SpecText(),
    multiple=True,
    metavar="SPEC",
    help="Try this one, too; it reaches the text that decides. May be repeated.",
)
@click.option("--search", is_flag=True, help="Try the schedule that `ropescale search` finds, too.")
@click.option("--search-tokens", type=Length(), metavar="N", help="What that search may feed (default: its own).")
@click.option("--for", "engine", metavar="ENGINE", help="Leave out what this engine would not compute as asked.")
@click.option(
    "--truncation/--no-truncation",
    default=None,
    help="The model as it is, given only its last tokens, beside the schedules (where it costs no more than they do).",
)
@click.option(
    "--truncation-stride", type=Length(), metavar="N", help="Tokens scored by each of its windows (default: chosen)."
)
@_request_options
@reading_options()
@click.option(
    "--score", type=click.Choice(["all", "assistant"]), default="all", show_default=True, help="Whose tokens of chats."
)
@click.option("--concat", is_flag=True, help="Join all documents into one, a blank line between two.")
@click.option("--min-tokens", type=click.IntRange(0), default=0, metavar="N", help="Skip documents with fewer tokens.")
@click.option("--max-docs", type=click.IntRange(1), metavar="N", help="At most this many documents.")
@click.option("--windows", metavar="N|all", help="Windows of each document; 1 is the first (default: the budget's).")
@click.option(
    "--budget-tokens", type=Length(), metavar="N", help="Of text, fed under a schedule that reaches the end (256k)."
)
@click.option(
    "--memory", metavar="B", help="Say the largest length whose KV cache fits beside the weights: 8GB, 80GiB."
)
@click.option(
    "--batch-tokens", type=click.IntRange(1), metavar="N", help="Fed at once (default: what fits into memory)."
)
@bos_option()
@loading_options()
@json_option()
@click.option("-o", "--out", type=Place(), metavar="OUT", help="Write results, plots and REPORT.md here.")
@click.option("--fresh", is_flag=True, help="Measure again what is stored in OUT, instead of continuing.")
def command(
    model: str, source: Sequence[str], target_length: int, as_json: bool, out: str | None, fresh: bool, **options: Any
) -> None:
    """Recommend the schedule for MODEL at a target length on a text, and print the command that patches it.

    Every fixed schedule that the model and the target allow is a candidate, over factors and the fields that matter,
    and so is the model as it is. Half of the text races them: all on a little of it, the better ones on more. The other
    half decides among those that are left: the simplest that is shown to be as good as every other one, with intervals
    that hold for all of them together. Where the text does not suffice it says so, and about how much more would.

    With -o, every finished batch is kept in OUT/resume: the same command again continues where it was.

    Many processes share the work: `torchrun --nproc_per_node 8 -m ropescale recommend ...`.
    """
    _check_early(model, target_length, options)
    from ..evals.recommending.results import Recommendation  # after what needs no torch

    def prepare(here: World) -> RecommendRun:
        return _prepared(model, source, target_length, dict(options), here)

    measure(prepare, Recommendation.folder, out=out, fresh=fresh, as_json=as_json, doing="measuring")


def _check_early(model: str, target: int, options: Mapping[str, Any]) -> None:
    """Refuses what can be refused in a moment, before the libraries are loaded."""
    from ..evals.recommending.wish import Wish, check_early

    patching = _request(**{name: options[name] for name in _REQUEST})
    named = {name: options[name] for name in ("short_weight", "lengths", "engine", "schedules")}
    check_early(model, options["revision"], target, Wish(patching, **named))


_LOADING = ("revision", "trust_remote_code", "dtype", "device")


def _prepared(model: str, source: Sequence[str], target: int, options: dict[str, Any], here: World) -> RecommendRun:
    from ..evals.data.sources import ReadOptions, TextSource
    from ..evals.recommending.options import RecommendOptions
    from ..evals.recommending.running import prepare
    from ..evals.running.preparing import Checkpoint

    checkpoint = Checkpoint(model, **{name: options.pop(name) for name in _LOADING})
    text = TextSource(
        source, ReadOptions(**{name: options.pop(name) for name in READING}), concat=options.pop("concat")
    )
    patching = _request(**{name: options.pop(name) for name in _REQUEST})
    bos, given = options.pop("bos"), {name: value for name, value in options.items() if value is not None}
    chosen = RecommendOptions(
        **given, patching=patching, source=text.name, progress=notes(here), name=model, revision=checkpoint.revision
    )
    return prepare(checkpoint, text, target, bos, chosen, here)


def _request(layers: str, original_length: int | None, replace_scaling: bool, on_top: bool) -> RequestOptions:
    """Returns how every candidate is applied."""
    return {
        "layers": layers,
        "original_length": original_length,
        "replace_scaling": replace_scaling,
        "on_top": on_top,
    }
