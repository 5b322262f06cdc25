"""``ropescale search MODEL --target-length N --data SRC -o factors.json``: learns a schedule with frozen weights."""

from collections.abc import Sequence
from typing import Any

from click import IntRange

from .measuring import keywords_for, made, measure, text_of
from .options import MODEL_SECTION, Sections, data_option, flag, model_argument, option, out_option, sectioned_command
from .run_file import CONFIG

_SECTIONS: Sections = {
    "Search": [
        data_option("File, folder, JSON(L), parquet, Hub NAME[:CONFIG] or -. May be repeated."),
        option("--target-length", "N", "The target context, such as 32k.", required=True),
        option("--budget-windows", "N", "The total number of windows to feed (default: 240).", IntRange(1)),
        option("--budget-tokens", "N", "The same in tokens."),
        option("--for engine", "ENGINE", "Search the schedules of an engine: vllm, sglang, mlx-lm, ..."),
        option("--seed", "N", "Seed of the text's order, and of the held-out part.", IntRange(0), default=0),
    ],
    "Target of the schedule": ["layers original_length replace_scaling on_top"],
    "The text": ["split text_field glob concat max_docs streaming bos"],
    "The result": [
        CONFIG,
        out_option("Write the schedule here, and the run into the sibling folder FILE-search.", "FILE.json"),
        flag("--fresh", "Restart the search in the folder, instead of resuming."),
        "force verbose quiet as_json",
    ],
    **MODEL_SECTION,
}


@sectioned_command("search", _SECTIONS, model_argument())
def command(model: str, source: Sequence[str], **options: Any) -> None:
    """Learn the schedule with which MODEL predicts a text best at a length, with frozen weights.

    \b
    Examples:
      ropescale search ./llama --data texts/ --target-length 32k -o factors.json
      ropescale patch ./llama -o ./llama-32k --schedule factors.json

    The search starts at YaRN's default, and varies the ramp's start and end, the factor and the attention scale. The
    result is the schedule with the lowest loss on a held-out part of the text. Every command with --schedule takes the
    file that -o writes.

    With -o, every step is stored: the same command resumes after any interruption.

    Many processes share the windows: `torchrun --nproc_per_node 8 -m ropescale search ...`. The result does not depend
    on their number.
    """
    from ..evals.api import search
    from ..evals.backends.opening import Checkpoint
    from ..evals.searching.options import places

    given = {"model": made(Checkpoint, options, name=model), "documents": text_of(source, options)}
    measure(search, {**given, **keywords_for(search, options)}, options, lambda out: places(out)[1])
