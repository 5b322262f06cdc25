"""``ropescale keys MODEL --data SRC -o keys.json``: finds tokens that need long context with a fixed key model."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

from click import FLOAT, IntRange

from ..request import made
from .measuring import keywords_for, text_of
from .options import (
    MODEL_SECTION,
    Sections,
    data_option,
    model_argument,
    option,
    out_option,
    print_result,
    say,
    sectioned_command,
)

_SECTIONS: Sections = {
    "What is measured": [
        data_option("Texts, as in `ropescale eval`.", multiple=False),
        option("--window", "N", "The shortest context, in tokens.", IntRange(1), default=4096),
        option("--stride", "N", "The number of tokens that share a short context.", IntRange(1), default=1024),
        option("--max-length", "N", "Cut longer texts to their first N tokens.", IntRange(2), default=32768),
        option("--import imports", "FILE", "Read LongPPL's own file, instead of running MODEL.", multiple=True),
    ],
    "Key tokens": [
        option("--alpha", "A", "Minimum gain from long context, in nats.", FLOAT, default=2.0),
        option("--beta", "B", "Upper bound -B of the long-context NLL.", FLOAT, default=-2.0),
    ],
    "The text": [
        "split text_field glob concat",
    ],
    **MODEL_SECTION,
    "The result": [out_option("Write the key spans here, as JSON.", "FILE", required=True), "as_json fresh force"],
}


@sectioned_command("keys", _SECTIONS, model_argument(required=False))
def command(
    model: str | None, source: str, out: str, as_json: bool, force: bool, imports: tuple[str, ...], **options: Any
) -> None:
    """Find the tokens that need long context, for `ropescale eval --key-spans FILE`.

    MODEL is the key model. It predicts every token from the full preceding text, and from a short window (LongPPL,
    arXiv:2410.23771). The perplexity of the tokens that need the full text shows differences between models that an
    average over all tokens hides. Measure every model with the same file.

    Finished batches are stored in a folder beside FILE, such as keys-run: the same command resumes after any
    interruption.
    """
    from ..errors import DataError
    from ..evals import api
    from ..evals.backends.checkpoint import Checkpoint
    from ..evals.data.key_tokens import check_replaceable
    from ..evals.parallel.processes import world
    from ..files import local_path, writable_file

    if (model is None) is not bool(imports):
        raise DataError("name either a MODEL or files of key tokens to import, not both", "import")
    text = text_of([source], options)
    if model is None:
        from ..evals.running.key_tokens import imported

        path = writable_file(out, check_replaceable)
        found = imported(imports, chain.from_iterable(text.texts().values()))
        found.save(path, force)
        summary = f"{sum(map(len, found.spans.values())):,} spans in {len(found.spans):,} texts"
    else:
        checkpoint = made(Checkpoint, options, name=model)
        found = api.keys(checkpoint, text, out=out, force=force, progress=True, **keywords_for(api.keys, options))
        if not world().leads:
            return
        summary = _summary(found.made)
    print_result(as_json, lambda: found.made, lambda: summary, local_path(out))
    say(f"written to {out}")


def _summary(made: Mapping[str, Any]) -> str:
    key, tokens, cut = (made[name] for name in ("key_tokens", "tokens", "cut_texts"))
    summary = (
        f"{key:,} of {tokens:,} tokens are key ({key / tokens:.2%}): more than {made['alpha']:g} nats better with "
    )
    summary += f"the full text than with {made['window']:,} tokens"
    return f"{summary}; texts that were cut to their first {made['max_length']:,} tokens: {cut:,}" if cut else summary
