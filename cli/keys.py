"""``ropescale keys MODEL --data SRC -o keys.json``: finds tokens that need long context with a fixed key model."""

from collections.abc import Mapping
from typing import Any

from click import FLOAT, IntRange

from .measuring import keywords_for, made, text_of
from .options import (
    MODEL_SECTION,
    Sections,
    data_option,
    model_argument,
    option,
    out_option,
    say,
    sectioned_command,
    show,
)

_SECTIONS: Sections = {
    "What is measured": [
        data_option("Texts, as in `ropescale eval`.", multiple=False),
        option("--window", "N", "The shortest context, in tokens.", IntRange(1), default=4096),
        option("--stride", "N", "The number of tokens that share a short context.", IntRange(1), default=1024),
        option("--max-length", "N", "Cut longer texts to their first N tokens.", IntRange(2), default=32768),
    ],
    "Key tokens": [
        option("--alpha", "A", "Minimum gain from long context, in nats.", FLOAT, default=2.0),
        option("--beta", "B", "Upper bound -B of the long-context NLL.", FLOAT, default=-2.0),
    ],
    "The text": ["split text_field glob concat"],
    **MODEL_SECTION,
    "The result": [out_option("Write the key spans here, as JSON.", "FILE", required=True), "fresh force quiet"],
}


@sectioned_command("keys", _SECTIONS, model_argument())
def command(model: str, source: str, out: str, force: bool, **options: Any) -> None:
    """Find the tokens that need long context, for `ropescale eval --key-spans FILE`.

    \b
    Examples:
      ropescale keys ./key-model --data texts/ -o keys.json
      ropescale eval ./llama --data texts/ --lengths 16k --key-spans keys.json

    MODEL is the key model. It predicts every token from the full preceding text, and from a short window (LongPPL,
    arXiv:2410.23771). The perplexity of the tokens that need the full text shows differences between models that an
    average over all tokens hides. Measure every model with the same file.

    Finished batches are stored in a folder beside FILE, such as keys-run: the same command resumes after any
    interruption.
    """
    from ..evals.api import keys
    from ..evals.backends.opening import Checkpoint
    from ..evals.parallel.processes import world
    from ..files import local_path

    checkpoint = made(Checkpoint, options, name=model)
    text = text_of([source], options)
    found = keys(checkpoint, text, out=out, force=force, **keywords_for(keys, options))
    if not world().leads:
        return
    show([_summary(found.made)], local_path(out))
    say(f"written to {out}")


def _summary(made: Mapping[str, Any]) -> str:
    key = made["key_tokens"]
    tokens = made["tokens"]
    cut = made["cut_texts"]
    summary = (
        f"{key:,} of {tokens:,} tokens are key ({key / tokens:.2%}): more than {made['alpha']:g} nats better with "
    )
    summary += f"the full text than with {made['window']:,} tokens"
    return f"{summary}; texts that were cut to their first {made['max_length']:,} tokens: {cut:,}" if cut else summary
