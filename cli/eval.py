"""``ropescale eval MODEL --data SRC --lengths ...``: perplexity against length, for several schedules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

import click

from ..evals.checking import Length as Tokens
from ..evals.metrics import OPTIONS
from .completion import Place
from .options import (
    DEVICE_MAPS,
    LOADING,
    MODEL_SECTION,
    READING,
    REQUEST_SECTIONS,
    SERVED,
    SOURCE,
    Length,
    Real,
    Whole,
    data_option,
    in_sections,
    lengths_option,
    made,
    model_argument,
    print_result,
    request_options,
    schedules_of,
    seed_option,
    shared_options,
)
from .run_file import config_option
from .running import ResultOptions, asked_servers, measure, notes, result_options, text_of

if TYPE_CHECKING:
    from ..evals.parallel.processes import World
    from ..evals.running.corpus_run import CorpusRun
    from ..evals.running.perplexity import PerplexityRun

_SECTIONS = {
    "What is measured": "source lengths",
    **REQUEST_SECTIONS,
    "The text": "split text_field prompt_field answer_field chat_template score glob encoding concat min_tokens "
    "max_docs windows budget_tokens streaming split_special_tokens bos",
    "How": " ".join(("stride short_context truncation truncation_stride", *OPTIONS, "seed")),
    "The result": "config out fresh force dry_run verbose as_json",
    **MODEL_SECTION,
    "A server in the place of MODEL": "servers served_as served_name tokenizer concurrency timeout",
    "Memory and many devices": "batch_tokens tp device_map",
}


_TYPES: dict[object, tuple[click.ParamType | type, str]] = {
    Tokens: (Length(), "N"),
    int: (Whole(), "N"),
    float: (Real(), "X"),
    Path: (Place(), "FILE"),
    str: (str, "TEXT"),
}
"""How the command line reads the values of metrics' options, and what the help calls them, by their types."""


def _options_of_metrics(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options that metrics declare."""
    for option in reversed(OPTIONS.values()):
        flag = f"--{option.name.replace('_', '-')}"
        about: dict[str, Any] = {"default": option.default, "help": option.help, "show_default": True}
        if option.type is bool:
            flag += f"/--no-{flag[2:]}"
        else:
            kind = option.type if option.type in _TYPES else get_args(option.type)[0]  # of one with a range
            about["type"], about["metavar"] = _TYPES[kind]
        command = click.option(flag, option.name, **about)(command)
    return command


@click.command("eval", cls=in_sections(_SECTIONS))
@config_option
@model_argument(required=False)
@data_option("File, folder, JSONL, parquet, Hub NAME[:CONFIG] or -. May be repeated: a table of each, and over all.")
@lengths_option("Positions, BOS included: 2k,4k,8k. May be repeated.")
@request_options("many")
@shared_options(
    "baseline",
    *READING,
    "prompt_field",
    "answer_field",
    "chat_template",
    *SOURCE,
    "score",
    "min_tokens",
    "max_docs",
    "windows",
    "bos",
    *LOADING,
)
@shared_options("batch_tokens", "truncation_stride")
@shared_options(*SERVED, "tokenizer")
@click.option(
    "--budget-tokens", type=Length(), metavar="N", help="Fed under one schedule (default: 256k without --windows)."
)
@click.option(
    "--stride", type=Length(), metavar="N", help="Whole documents, in sliding windows N tokens apart (slower)."
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
@_options_of_metrics
@seed_option("Kept with the results; no figure depends on it.")
@result_options(
    "Write results, losses, plots and REPORT.md here.", "Measure again what is stored in OUT, instead of continuing."
)
@click.option("--dry-run", is_flag=True, help="Print what the run would take, time one batch of it, and stop.")
def command(
    model: str | None,
    source: Sequence[str],
    lengths: list[int],
    result: ResultOptions,
    dry_run: bool,
    **options: Any,
) -> None:
    """Measure perplexity against length, under each schedule, on the same tokens.

    MODEL may be a PEFT adapter's folder, which is loaded on the base that it names (extra adapters).

    The model as it is always runs, and is what the others are compared with unless --baseline says otherwise.
    --factor, with commas for several (2,4,8), and --target-length give the factor to every schedule that takes one and
    does not say it itself; without any, it is the largest length over the trained one. --set gives a field to every
    schedule that has it. With -o, every finished batch is kept in OUT/resume: the same command again continues where it
    was, whatever stopped it.

    Many processes share the work, each with a whole model on its device: `torchrun --nproc_per_node 8 -m ropescale
    eval ...`, or `accelerate launch -m ropescale eval ...`. The numbers do not depend on how many there are. A
    model that is too large for one device is shared out by --tp over the processes, or by --device-map auto over the
    devices of one (and its memory and disk, where they do not suffice; slower, because they work one after the other).

    With --prompt-field or --answer-field, each row of SRC is a prompt with its answer, and the tokens of the answers
    alone are scored, each after as much of its prompt as a window holds; --stride is half of the smallest length then.

    With --server, a server of vLLM or SGLang scores instead, and --tokenizer names the checkpoint that it serves;
    several, each with its --served-as, are compared on the same tokens. A key is read from OPENAI_API_KEY.
    """
    from ..evals.parallel.processes import Sharing, together
    from ..evals.results.folder import writable_folder
    from ..evals.running.selection import PerplexityOptions

    if options["stride"] is None and {options["prompt_field"], options["answer_field"]} != {None}:
        options["stride"] = max(1, min(lengths) // 2)
    sharing = made(Sharing, options)
    servers, checkpoint = asked_servers(options, model, _BY_SERVERS)

    def prepare(here: World) -> CorpusRun:
        text, bos = text_of(source, options), options["bos"]
        of_metrics = {name: options[name] for name in OPTIONS}
        chosen = made(PerplexityOptions, options, of_metrics=of_metrics, path=checkpoint, progress=notes())
        if servers:
            from ..evals.servers.running import prepare_served

            return prepare_served(servers, checkpoint, options["baseline"], text, lengths, bos, chosen)
        from ..evals.running import perplexity

        return perplexity.prepare(checkpoint, schedules_of(options), text, lengths, bos, chosen, here)

    if not dry_run:
        measure(prepare, writable_folder, result, source=source, doing="measuring", sharing=sharing)
        return
    with together(sharing) as group:
        run = cast("PerplexityRun", prepare(group.world))  # a dry run is refused beside servers
        found = run.dry_run()
        if group.world.leads:
            print_result(result.as_json, found.to_dict, found.to_markdown)


_BY_SERVERS = (
    *("servers served_as served_name tokenizer concurrency timeout source lengths baseline revision").split(),
    *("trust_remote_code chat_template score min_tokens max_docs windows bos as_json verbose truncation").split(),
    *("truncation_stride budget_tokens stride short_context seed out").split(),
    *OPTIONS,
    *("fresh force config prompt_field answer_field").split(),
    *READING,
    *SOURCE,
)
"""The parameters that servers have a use for."""
