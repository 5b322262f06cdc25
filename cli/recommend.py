"""``ropescale recommend MODEL --target-length N --data SRC``: the schedule for a model and a text, measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .completion import SpecText
from .options import (
    MODEL_SECTION,
    PATCHING,
    SERVER_SECTION,
    Length,
    Real,
    Sections,
    data_option,
    flag,
    made,
    model_argument,
    option,
    out_option,
    sectioned_command,
)
from .run_file import CONFIG
from .running import asked_servers, measure, notes, text_of

if TYPE_CHECKING:
    from ..evals.parallel.processes import World
    from ..evals.recommending.running import RecommendRun

_SECTIONS: Sections = {
    "What is wanted": [
        option("--target-length", "N", "The context wanted, such as 32k.", Length(), required=True),
        data_option("File, folder, JSONL, parquet, Hub NAME[:CONFIG] or -. May be repeated."),
        option(
            "--short-weight",
            "W",
            "Weight of the loss within the trained length, from 0 to below 1 (default: 0.1).",
            Real(),
        ),
        option("--lengths", "N:W,...", "Weights of several lengths instead: 2k:0.7,32k:0.3."),
        option("--tolerance", "NATS", "Schedules closer than this are equally good (default: 0.005).", Real()),
    ],
    "What is tried": [
        option(
            "--schedule schedules",
            "SPEC",
            "Try this one, too; it reaches the text that decides. May be repeated.",
            SpecText(),
            multiple=True,
        ),
        flag("--search", "Try the schedule that `ropescale search` finds, too."),
        option("--search-tokens", "N", "What that search may feed (default: its own).", Length()),
        option("--for engine", "ENGINE", "Leave out what this engine would not compute as asked."),
        option(
            "--truncation/--no-truncation",
            None,
            "The model as it is, given only its last tokens, beside the schedules (where it costs no more than "
            "they do).",
            default=None,
        ),
        "truncation_stride layers original_length",
    ],
    "Where the model is already scaled": ["replace_scaling on_top"],
    "The text": [
        "split text_field chat_template score glob encoding concat min_tokens max_docs windows",
        option("--budget-tokens", "N", "Of text, fed under a schedule that reaches the end (256k).", Length()),
        "bos",
    ],
    "The result": [
        option("--memory", "B", "Say the largest length whose KV cache fits beside the weights: 8GB, 80GiB."),
        CONFIG,
        out_option("Write results, plots and REPORT.md here."),
        "fresh force verbose as_json",
    ],
    **MODEL_SECTION,
    **SERVER_SECTION,
    "How it is fed": ["batch_tokens"],
}


@sectioned_command("recommend", _SECTIONS, model_argument(required=False))
def command(model: str | None, source: Sequence[str], target_length: int, **options: Any) -> None:
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

    servers, checkpoint = asked_servers(options, model)
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

    measure(prepare, Recommendation.writable_folder, options, source=source, doing="measuring")
