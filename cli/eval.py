"""``ropescale eval MODEL --data SRC --lengths ...``: perplexity against length, for several schedules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from .completion import Place, SpecText
from .options import (
    DEVICE_MAPS,
    MODEL_SECTION,
    READING,
    REQUEST_SECTIONS,
    Length,
    bos_option,
    json_option,
    lengths_option,
    loading_options,
    model_argument,
    reading_options,
    request_of,
    request_options,
)
from .running import measure, notes
from .sections import in_sections

if TYPE_CHECKING:
    from ..evals.parallel.processes import World
    from ..evals.running.perplexity import PerplexityRun

_SECTIONS = {
    "What is measured": "source lengths",
    **REQUEST_SECTIONS,
    "The text": "split text_field score glob encoding concat min_tokens "
    "max_docs windows budget_tokens streaming split_special_tokens bos",
    "How": "protocol stride short_context truncation truncation_stride repeat_distance key_spans seed",
    "The result": "out fresh as_json",
    **MODEL_SECTION,
    "Memory and many devices": "batch_tokens sequence_parallel tp device_map",
}


@click.command("eval", cls=in_sections(_SECTIONS))
@model_argument()
@click.option(
    "--data",
    "source",
    type=Place(),
    required=True,
    multiple=True,
    metavar="SRC",
    help="File, folder, JSONL, parquet, Hub NAME[:CONFIG] or -. May be repeated: a table of each, and over all.",
)
@lengths_option("Positions, BOS included: 2k,4k,8k. May be repeated.")
@request_options("many")
@click.option("--baseline", type=SpecText(), metavar="SPEC", help="What the others are compared with (default: as-is).")
@reading_options()
@click.option(
    "--score", type=click.Choice(["all", "assistant"]), default="all", show_default=True, help="Whose tokens of chats."
)
@click.option("--concat", is_flag=True, help="Join all documents into one, a blank line between two.")
@click.option("--min-tokens", type=click.IntRange(0), default=0, metavar="N", help="Skip documents with fewer tokens.")
@click.option("--max-docs", type=click.IntRange(1), metavar="N", help="At most this many documents.")
@click.option("--windows", metavar="N|all", help="Windows of each document; 1 is the first (default: the budget's).")
@click.option(
    "--budget-tokens", type=Length(), metavar="N", help="Fed under one schedule (default: 256k without --windows)."
)
@click.option("--streaming", is_flag=True, help="Read a Hub dataset only as far as --max-docs needs.")
@click.option("--split-special-tokens", is_flag=True, help="Special tokens named in the text are text like any other.")
@click.option(
    "--protocol",
    type=click.Choice(["ropescale", "yarn-paper", "hf-docs"]),
    default="ropescale",
    show_default=True,
    help="How windows become a number; the others reproduce published scripts, with their bugs.",
)
@click.option(
    "--stride", type=Length(), metavar="N", help="Whole documents, in sliding windows N tokens apart (slower)."
)
@click.option(
    "--batch-tokens", type=click.IntRange(1), metavar="N", help="Fed at once (default: what fits into memory)."
)
@click.option(
    "--sequence-parallel", type=click.IntRange(1), metavar="N", help="Each window by N processes, where it is too long."
)
@click.option("--tp", is_flag=True, help="The model over all processes, where it is too large for one device.")
@click.option(
    "--device-map", type=click.Choice(DEVICE_MAPS), help="The model over this machine's devices, by one process."
)
@click.option(
    "--short-context/--no-short-context",
    default=True,
    help="Compare predictions with the baseline's at the largest length up to the trained one (on by default).",
)
@click.option(
    "--truncation/--no-truncation",
    default=None,
    help="Compare with the model given only its last tokens, as many as it was trained at (on where it doubles the "
    "cost at most).",
)
@click.option(
    "--truncation-stride", type=Length(), metavar="N", help="Tokens scored by each of its windows (default: chosen)."
)
@click.option(
    "--repeat-distance", type=Length(), metavar="N", help="How far back a far repeat is (default: the trained length)."
)
@click.option("--key-spans", type=Place(), metavar="FILE", help="Measure the tokens that `ropescale keys` found, too.")
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    metavar="N",
    help="Kept with the results; no figure depends on it.",
)
@bos_option()
@loading_options()
@json_option()
@click.option(
    "-o",
    "--out",
    type=Place(),
    metavar="OUT",
    help="Write results, losses, plots and REPORT.md here.",
)
@click.option("--fresh", is_flag=True, help="Measure again what is stored in OUT, instead of continuing.")
def command(
    model: str, source: Sequence[str], lengths: list[int], as_json: bool, out: str | None, fresh: bool, **options: Any
) -> None:
    """Measure perplexity against length, under each schedule, on the same tokens.

    MODEL may be a PEFT adapter's folder, which is loaded on the base that it names (extra adapters).

    The model as it is always runs, and is what the others are compared with unless --baseline says otherwise.
    --factor and --target-length give the factor to every schedule that takes one and does not say it itself; one
    that says another is an error, as in `ropescale patch`. --set gives a field to every schedule that has it. With -o,
    every finished batch is kept in OUT/resume: the same command again continues where it was, whatever stopped it.

    Many processes share the work, each with a whole model on its device: `torchrun --nproc_per_node 8 -m ropescale
    eval ...`, or `accelerate launch -m ropescale eval ...`. The numbers do not depend on how many there are. Windows
    that are too long for one device are shared by --sequence-parallel N of them. A model that is too large for one
    device is shared out by --tp over the processes, or by --device-map auto over the devices of one (and its memory and
    disk, where they do not suffice; slower, because they work one after the other).
    """
    from ..evals.parallel.processes import Sharing
    from ..evals.run_folder.folder import writable_folder

    def prepare(here: World) -> PerplexityRun:
        return _prepared(model, source, lengths, options, here)

    sharing = Sharing(options.pop("sequence_parallel"), options["tp"], options["device_map"], options["device"])
    measure(prepare, writable_folder, out=out, fresh=fresh, as_json=as_json, doing="measuring", sharing=sharing)


_LOADING = ("revision", "trust_remote_code", "dtype", "device", "device_map", "tp")
_SOURCE = ("concat", "streaming", "split_special_tokens")


def _prepared(
    model: str, source: Sequence[str], lengths: list[int], options: dict[str, Any], here: World
) -> PerplexityRun:
    from ..evals.data.sources import ReadOptions, TextSource
    from ..evals.running.preparing import Checkpoint, prepare
    from ..evals.running.selection import PerplexityOptions

    request, schedules, baseline = request_of(options), options.pop("schedules"), options.pop("baseline")
    checkpoint = Checkpoint(model, **{name: options.pop(name) for name in _LOADING})
    asked = ReadOptions(**{name: options.pop(name) for name in READING})
    text = TextSource(source, asked, **{name: options.pop(name) for name in _SOURCE})
    bos = options.pop("bos")
    chosen = PerplexityOptions(**options, source=text.name, progress=notes(here))
    return prepare(checkpoint, (schedules, baseline, request), text, lengths, bos, chosen, here)
