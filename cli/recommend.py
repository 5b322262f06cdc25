"""``ropescale recommend MODEL --target-length N --data SRC``: recommends a schedule for a model and a text."""

from collections.abc import Sequence
from typing import Any

from click import FLOAT

from ..files import present
from .measuring import keywords_for, measure, model_of, text_of
from .options import (
    MODEL_SECTION,
    SERVER_SECTION,
    Sections,
    data_option,
    flag,
    model_argument,
    option,
    out_option,
    sectioned_command,
    switch,
)
from .run_file import CONFIG

_SECTIONS: Sections = {
    "Target": [
        option("--target-length", "N", "The target context, such as 32k.", required=True),
        data_option("File, folder, JSON(L), parquet, Hub NAME[:CONFIG] or -. May be repeated."),
        option(
            "--short-weight",
            "W",
            "Weight of the loss within the trained length, from 0 to below 1 (default: 0.1).",
            FLOAT,
        ),
        option("--tolerance", "NATS", "Schedules closer than this count as equal (default: 0.005).", FLOAT),
    ],
    "Candidates": [
        option("--schedule schedules", "SPEC", "Add this schedule to the finalists. May be repeated.", multiple=True),
        flag("--search", "Add the schedule of `ropescale search`."),
        option("--search-tokens", "N", "Token budget of that search (default: as in `ropescale search`)."),
        option("--for engine", "ENGINE", "Leave out schedules that this engine would change."),
        switch(
            "--truncation",
            "Compare with MODEL as it is on only the last tokens (on if this costs no more than the schedules).",
            None,
        ),
        "truncation_stride layers original_length",
    ],
    "Already scaled models": ["replace_scaling on_top"],
    "The text": [
        "split text_field chat_template score glob concat max_docs windows",
        option("--budget-tokens", "N", "Tokens to feed with each finalist (default: 256k)."),
        "bos",
    ],
    "The result": [CONFIG, out_option("Write results, plots and REPORT.md here."), "fresh force verbose quiet as_json"],
    **MODEL_SECTION,
    **SERVER_SECTION,
    "Feeding": ["batch_tokens"],
}


@sectioned_command("recommend", _SECTIONS, model_argument(required=False))
def command(model: str | None, source: Sequence[str], target_length: int, **options: Any) -> None:
    """Recommend a schedule for MODEL at a target length on a text, and print the patch command.

    \b
    Examples:
      ropescale recommend ./llama --data texts/ --target-length 32k -o OUT
      ropescale recommend ./llama --data texts/ --target-length 32k --for vllm

    The candidates are MODEL as it is and every fixed schedule that the model and the target allow, over factors
    and important fields. One half of the text is for a race: all candidates run on a small part, and the better ones on
    more. The other half decides among the finalists: the result is the simplest finalist that is as good as every
    other, by simultaneous intervals. If the text is too short to decide, the command reports this.

    With -o, every finished batch is stored in OUT/resume: the same command resumes from there.

    Many processes share the work: `torchrun --nproc_per_node 8 -m ropescale recommend ...`.

    With --server, servers score the text; give a --served-as for each, one of them base, and the served
    checkpoint as --tokenizer. Then the full text decides among the served schedules without a race, by the same rule.
    """
    from ..evals.api import recommend

    stated = present(keywords_for(recommend, options))
    given = {**model_of(options, model), "documents": text_of(source, options), "target_length": target_length}
    measure(recommend, {**stated, **given}, options)
