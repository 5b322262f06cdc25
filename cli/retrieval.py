"""``ropescale retrieval MODEL --lengths ...``: measures retrieval under several schedules."""

from typing import Any

from click import Choice, IntRange

from .measuring import keywords_for, measure, model_of
from .options import (
    MODEL_SECTION,
    SERVER_SECTION,
    Sections,
    flag,
    lengths_option,
    model_argument,
    option,
    out_option,
    request_sections,
    sectioned_command,
)
from .run_file import CONFIG

_SECTIONS: Sections = {
    "What is measured": [
        lengths_option("Lengths in positions, including BOS and answer. May be repeated."),
        option("--depths", "D,...", "Depths such as 0,0.5,1 (0 is the start), or the number of depths.", default="5"),
        option("--trials", "N", "Answers per length and depth.", IntRange(1), default=10),
        option("--seed", "N", "Seed of the texts and the numbers.", IntRange(0), default=0),
    ],
    "Prompts from a file": [
        option(
            "--prompts",
            "SRC",
            "Prompts with answers from a file: a JSONL of RULER, a folder of such files, parquet or Hub NAME.",
        ),
        "prompt_field answer_field",
        option("--max-prompts", "N", "Run only the first N prompts of each task and length.", IntRange(1)),
        option("--new-tokens", "N", "Tokens to generate per prompt (default: the row's, or RULER's).", IntRange(1)),
        option(
            "--match", None, "The answers that must appear (default: any for qa_*, else all).", Choice(["all", "any"])
        ),
    ],
    **request_sections("schedules baseline"),
    "The result": [
        CONFIG,
        out_option("Write results, every answer, heat maps and REPORT.md here."),
        flag("--fresh", "Measure again instead of resuming from OUT."),
        "force verbose quiet as_json",
    ],
    **MODEL_SECTION,
    **SERVER_SECTION,
    "Feeding": ["bos", option("--batch-tokens", "N", "Tokens to feed at once.", IntRange(1), default=8192)],
}


@sectioned_command("retrieval", _SECTIONS, model_argument(required=False))
def command(model: str | None, lengths: list[int], **options: Any) -> None:
    """Measure whether a model retrieves a number hidden in a long text, by length, depth and schedule.

    \b
    Examples:
      ropescale retrieval ./llama --lengths 4k,16k --schedule yarn -o OUT
      ropescale retrieval ./llama --lengths 16k --prompts ruler/ --schedule yarn

    One forward pass scores the teacher-forced answer. The answer is correct if every token is ranked first, so that
    greedy decoding would write it; this works on base models. The answer's NLL shows differences even if no schedule
    retrieves the number, but other improvements also lower it. A uniform
    guess of the number (10000 to 99999) costs 11.41 nats.

    Answers are compared with those of MODEL as it is, which always runs, or of --baseline. --factor and
    --target-length set the factor of every schedule that takes one and does not set its own. With -o, every finished
    batch is stored in OUT/resume; the same command resumes after any interruption.

    Many processes share the prompts: `torchrun --nproc_per_node 8 -m ropescale retrieval ...`. The answers do not
    depend on their number.

    Every prompt from a file (--prompts) runs at the smallest of --lengths that fits the prompt and the generated
    tokens. The score is RULER's: the share of the answers in the greedily decoded text. The teacher-forced answer loss
    is reported as well.

    With --server, a server answers instead, and --tokenizer names the served checkpoint.
    """
    from ..evals.api import retrieval

    given = {**model_of(options, model), "lengths": lengths}
    measure(retrieval, {**given, **keywords_for(retrieval, options)}, options)
