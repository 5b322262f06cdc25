"""``ropescale keys MODEL --data SRC -o keys.json``: finds tokens that need long context, by a fixed key model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .options import (
    LOADING,
    MODEL_SECTION,
    READING,
    Length,
    Real,
    data_option,
    model_argument,
    out_option,
    print_json,
    put,
    say,
    shared_options,
)
from .running import checkpoint_of, notes, text_of
from .sections import in_sections

if TYPE_CHECKING:
    from ..evals.parallel.processes import World
    from ..evals.running.perplexity import PerplexityRun

_SECTIONS = {
    "What is measured": "source window short stride",
    "Which tokens are key": "alpha beta",
    "The text": "split text_field glob encoding concat bos",
    **MODEL_SECTION,
    "The result": "out as_json",
}


@click.command("keys", cls=in_sections(_SECTIONS))
@model_argument()
@data_option("Texts, as in `ropescale eval`.", multiple=False)
@out_option("Write the key spans here, as JSON.", "FILE", required=True)
@click.option("--window", type=Length(), metavar="N", help="The long context (default: the trained length).")
@click.option("--short", type=Length(), metavar="N", help="The short context (default: a quarter of the long one).")
@click.option("--stride", type=Length(), metavar="N", help="Distance between windows (default: half the short one).")
@click.option(
    "--alpha", type=Real(), default=2.0, show_default=True, metavar="A", help="Nats that long context must gain."
)
@click.option(
    "--beta", type=Real(), default=-2.0, show_default=True, metavar="B", help="The long-context NLL must be below -B."
)
@click.option("--concat", is_flag=True, help="Join all documents into one, with blank lines between them.")
@shared_options(*READING, "bos", *LOADING, "as_json")
def command(model: str, source: str, out: str, as_json: bool, **options: Any) -> None:
    """Find the tokens that need long context, for `ropescale eval --key-spans FILE`.

    MODEL is the key model. Inside its own window it shows how much better each token is predicted with long context
    than with short (LongPPL, arXiv:2410.23771). The perplexity of these key tokens shows differences between models
    that an average over all tokens hides. Measure every model with the same file.
    """
    from ..evals.data import key_tokens
    from ..evals.metrics.key_tokens import find
    from ..evals.parallel.processes import together
    from ..evals.single_file import target

    path = target(out, key_tokens.check_replaceable)
    with together() as group:
        run = _prepared(model, source, options, group.world)
        run.run(group=group)
        if not group.world.leads:
            return
        found = find(run.result(), options["alpha"], options["beta"])
    found.save(path)
    if as_json:
        print_json(found.made, path)
    else:
        made = found.made
        put(
            f"{made['key_tokens']:,} of {made['tokens']:,} tokens are key ({made['key_tokens'] / made['tokens']:.2%}): "
            f"{options['alpha']:g} nats or more better with {made['window']:,} positions than with {made['short']:,}",
            path,
        )
    say(f"written to {out}")


def _prepared(model: str, source: str, options: dict[str, Any], here: World) -> PerplexityRun:
    """Prepares the measurement of the key model with short and with long context."""
    from ..evals.running.preparing import prepare_keys

    text, checkpoint = text_of([source], options), checkpoint_of(model, options)
    windows = options["window"], options["short"], options["stride"]
    return prepare_keys(checkpoint, text, windows, options["bos"], notes(here), here)
