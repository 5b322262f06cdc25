"""``ropescale recommend MODEL --target-length N --data SRC``: the schedule for a model and a text, measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from .completion import SpecText
from .options import (
    LOADING,
    MODEL_SECTION,
    PATCHING,
    READING,
    SERVED,
    Length,
    Real,
    data_option,
    in_sections,
    made,
    model_argument,
    shared_options,
)
from .run_file import config_option
from .running import ResultOptions, asked_servers, measure, notes, result_options, text_of

if TYPE_CHECKING:
    from ..evals.parallel.processes import World
    from ..evals.recommending.running import RecommendRun

_SECTIONS = {
    "What is wanted": "target_length source short_weight lengths tolerance",
    "What is tried": "schedules search search_tokens engine truncation truncation_stride layers original_length",
    "Where the model is already scaled": "replace_scaling on_top",
    "The text": "split text_field chat_template score glob encoding concat min_tokens max_docs windows "
    "budget_tokens bos",
    "The result": "memory config out fresh force verbose as_json",
    **MODEL_SECTION,
    "A server in the place of MODEL": "servers served_as served_name tokenizer concurrency timeout",
    "How it is fed": "batch_tokens",
}


@click.command("recommend", cls=in_sections(_SECTIONS))
@config_option
@model_argument(required=False)
@click.option("--target-length", type=Length(), required=True, metavar="N", help="The context wanted, such as 32k.")
@data_option("File, folder, JSONL, parquet, Hub NAME[:CONFIG] or -. May be repeated.")
@click.option(
    "--short-weight",
    type=Real(),
    metavar="W",
    help="Weight of the loss within the trained length, from 0 to below 1 (default: 0.1).",
)
@click.option("--lengths", metavar="N:W,...", help="Weights of several lengths instead: 2k:0.7,32k:0.3.")
@click.option(
    "--tolerance", type=Real(), metavar="NATS", help="Schedules closer than this are equally good (default: 0.005)."
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
@shared_options("truncation_stride", *PATCHING, *READING, "score", "concat", "min_tokens", "max_docs", "windows")
@click.option(
    "--budget-tokens", type=Length(), metavar="N", help="Of text, fed under a schedule that reaches the end (256k)."
)
@click.option(
    "--memory", metavar="B", help="Say the largest length whose KV cache fits beside the weights: 8GB, 80GiB."
)
@shared_options("batch_tokens", "chat_template", "bos", *LOADING)
@shared_options(*SERVED, "tokenizer")
@result_options(
    "Write results, plots and REPORT.md here.", "Measure again what is stored in OUT, instead of continuing."
)
def command(
    model: str | None,
    source: Sequence[str],
    target_length: int,
    result: ResultOptions,
    **options: Any,
) -> None:
    """Recommend the schedule for MODEL at a target length on a text, and print the command that patches it.

    Every fixed schedule that the model and the target allow is a candidate, over factors and the fields that matter,
    and so is the model as it is. Half of the text races them: all on a little of it, the better ones on more. The other
    half decides among those that are left: the simplest that is shown to be as good as every other one, with intervals
    that hold for all of them together. Where the text does not suffice it says so.

    With -o, every finished batch is kept in OUT/resume: the same command again continues where it was.

    Many processes share the work: `torchrun --nproc_per_node 8 -m ropescale recommend ...`.

    With --server, servers of vLLM or SGLang score, each with its --served-as, one of them base; --tokenizer names the
    checkpoint that they serve. Nothing races then: all of the text decides among what they serve, by the same rule.
    """
    from ..evals.recommending.candidates import objective_and_candidates
    from ..evals.recommending.options import RecommendOptions

    servers, checkpoint = asked_servers(options, model, _BY_SERVERS)
    patching = {name: options[name] for name in PATCHING}
    given = {name: value for name, value in options.items() if value is not None}
    chosen = made(RecommendOptions, given, patching=patching, name=checkpoint.name, path=checkpoint, progress=notes())
    objective_and_candidates(*checkpoint.configs, target_length, chosen)  # refuses early
    from ..evals.recommending.results import Recommendation  # after what needs no torch

    def prepare(here: World) -> RecommendRun:
        text, bos = text_of(source, options), options["bos"]
        if servers:
            from ..evals.servers.recommending import prepare_recommendation

            texts, tokenizer = text.texts(), checkpoint.tokenizer()
            return prepare_recommendation(servers, texts, target_length, bos, chosen, tokenizer, text)
        from ..evals.recommending import running

        return running.prepare(checkpoint, text, target_length, bos, chosen, here)

    measure(prepare, Recommendation.writable_folder, result, source=source, doing="measuring")


_BY_SERVERS = (
    *("servers served_as served_name tokenizer concurrency timeout source target_length short_weight lengths").split(),
    *("tolerance truncation truncation_stride revision trust_remote_code chat_template score concat").split(),
    *("min_tokens max_docs windows budget_tokens bos as_json verbose out fresh force config engine").split(),
    *READING,
)
"""The parameters that servers have a use for."""
