"""``ropescale eval MODEL --data SRC --lengths ...``: measures perplexity against length for several schedules."""

from collections.abc import Sequence
from inspect import signature
from pathlib import Path
from typing import Any, get_args

from click import IntRange, Option

from ..evals.checking import Length as Tokens
from ..evals.metrics import OPTIONS, base as metrics
from .measuring import keywords_for, measure, model_of, text_of
from .options import (
    MODEL_SECTION,
    SERVER_SECTION,
    OneOf,
    Sections,
    data_option,
    flag,
    lengths_option,
    model_argument,
    option,
    out_option,
    request_sections,
    sectioned_command,
    switch,
)
from .run_file import CONFIG

DEVICE_MAPS = ("auto", "balanced", "balanced_low_0", "sequential")
"""accelerate's device maps, which spread a model over several devices."""

_METAVARS: dict[object, str] = {Tokens: "N", int: "N", float: "X", Path: "FILE", str: "TEXT"}
"""The placeholders of metrics' options, by type."""


def _option_of(declared: metrics.Option[Any]) -> Option:
    """Builds the command-line option that a metric declares."""
    flags = f"--{declared.name.replace('_', '-')}"
    if declared.type is bool:
        return switch(flags, declared.help, declared.default)
    metavar = _METAVARS[declared.type if declared.type in _METAVARS else get_args(declared.type)[0]]  # without a range
    return option(f"{flags} {declared.name}", metavar, declared.help, default=declared.default)


_SECTIONS: Sections = {
    "Measurement": [
        data_option(
            "File, folder, JSON(L), parquet, Hub NAME[:CONFIG] or -. May be repeated: one table per source, and one "
            "over all."
        ),
        lengths_option("Lengths in positions, including BOS: 2k,4k,8k. May be repeated."),
    ],
    **request_sections("schedules baseline"),
    "The text": [
        "split text_field prompt_field answer_field chat_template score glob",
        "concat min_tokens max_docs windows",
        option("--budget-tokens", "N", "Tokens to feed per schedule (default: 256k without --windows)."),
        "streaming bos",
    ],
    "How": [
        option("--stride", "N", "Score full documents, in sliding windows N tokens apart (slower)."),
        switch(
            "--short-context",
            "Compare predictions with the baseline's at the largest length within the trained length.",
        ),
        switch(
            "--truncation", "Compare with truncation to the trained length (on if it at most doubles the cost).", None
        ),
        "truncation_stride",
        *map(_option_of, OPTIONS.values()),
        option("--seed", "N", "Stored with the results, which do not depend on it.", IntRange(0), default=0),
    ],
    "The result": [
        CONFIG,
        out_option("Write results, losses, plots and REPORT.md here."),
        "fresh force",
        "verbose quiet as_json",
    ],
    **MODEL_SECTION,
    **SERVER_SECTION,
    "Memory and devices": [
        "batch_tokens",
        flag("--tp", "Shard a large model over all processes."),
        option(
            "--device-map", None, "Spread the model over this machine's devices, in one process.", OneOf(DEVICE_MAPS)
        ),
    ],
}


@sectioned_command("eval", _SECTIONS, model_argument(required=False))
def command(model: str | None, source: Sequence[str], lengths: list[int], **options: Any) -> None:
    """Measure perplexity against length, under each schedule, on the same tokens.

    \b
    Examples:
      ropescale eval ./llama --data book.txt --lengths 2k,8k,32k --schedule yarn -o OUT
      ropescale eval ./llama --data texts/ --lengths 4k,16k --schedule yarn --factor 2,4

    MODEL as it is (as-is) always runs, as the default baseline (--baseline). The options --factor (several with
    commas: 2,4,8) and --target-length set the factor of every schedule that takes one and does not set its own; by
    default, the factor is the largest length divided by the trained length. The option --set sets a field of every
    schedule that has it. With -o, every finished batch is stored in OUT/resume: the same command resumes after any
    interruption.

    MODEL may be a PEFT adapter's folder, which is loaded on its base (extra adapters).

    Many processes share the work, each with a whole model on its device: `torchrun --nproc_per_node 8 -m ropescale eval
    ...`, or `accelerate launch -m ropescale eval ...`. The numbers do not depend on the number of processes. A model
    that is too large for one device is sharded by --tp over the processes, or by --device-map auto over the devices of
    one process (and its memory and disk if needed; slower, because the devices work in turn).

    With --prompt-field or --answer-field, every row of SRC is a prompt with its answer, and only the answer tokens are
    scored, after as much of the prompt as fits into the window; the default --stride is half of the smallest length.

    With --server, a server (vLLM, SGLang, LMDeploy, llama-server) scores instead, and --tokenizer names the
    checkpoint that it serves. Several servers, each with its --served-as, are compared on the same tokens. An API
    key is read from OPENAI_API_KEY.
    """
    from ..evals.api import perplexity

    given = {**model_of(options, model), "documents": text_of(source, options), "lengths": lengths}
    known = signature(perplexity).parameters
    further = {name: options[name] for name in OPTIONS if name not in known}
    keywords = {**given, **keywords_for(perplexity, options), "metric_options": further}
    measure(perplexity, keywords, options)
