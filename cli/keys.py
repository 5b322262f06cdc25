"""``ropescale keys MODEL --data SRC -o keys.json``: which tokens need long context, by a fixed key model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..models.loading import load_model, load_tokenizer
from .eval import one_voice
from .options import (
    Length,
    bos_option,
    json_option,
    loading_options,
    model_argument,
    print_json,
)

if TYPE_CHECKING:
    from ..evals.parallel.processes import Group
    from ..evals.results.result import Result


@click.command("keys")
@model_argument()
@click.option("--data", "source", required=True, metavar="SRC", help="As for `ropescale eval`.")
@click.option("-o", "--out", required=True, metavar="FILE", help="Write the key spans here, as JSON.")
@click.option("--window", type=Length(), metavar="N", help="The long context (default: the trained length).")
@click.option("--short", type=Length(), metavar="N", help="The short context (default: a quarter of the long one).")
@click.option("--stride", type=Length(), metavar="N", help="Between the windows (default: half the short one).")
@click.option(
    "--alpha", type=float, default=2.0, show_default=True, metavar="A", help="Nats that long context must gain."
)
@click.option(
    "--beta", type=float, default=-2.0, show_default=True, metavar="B", help="The long-context NLL must be below -B."
)
@click.option("--split", metavar="S", help="Split of a dataset.")
@click.option("--text-field", metavar="F", help="Field that holds the text.")
@click.option("--concat", is_flag=True, help="Join all documents into one, a blank line between two.")
@bos_option()
@loading_options()
@json_option()
def command(model: str, source: str, out: str, as_json: bool, **options: Any) -> None:
    """Find the tokens that need long context, for `ropescale eval --key-spans FILE`.

    MODEL is the key model. Inside its own window it says, of every token, how much better it is predicted with long
    context than with short (LongPPL, arXiv:2410.23771). The perplexity of those key tokens tells models apart that an
    average over all tokens does not. Measure every model with the same file.
    """
    from ..evals.data import key_tokens
    from ..evals.metrics.key_tokens import find
    from ..evals.parallel.processes import joined, world

    path = key_tokens.target(out)
    here = world()
    with one_voice(here), joined(here) as group:
        measured = _measured(model, source, options, group)
        if measured is None:
            return
        found = find(measured, options["alpha"], options["beta"])
    found.save(path)
    if as_json:
        print_json(found.made)
    else:
        made = found.made
        click.echo(
            f"{made['key_tokens']:,} of {made['tokens']:,} tokens are key ({made['key_tokens'] / made['tokens']:.2%}): "
            f"{options['alpha']:g} nats or more better with {made['window']:,} positions than with {made['short']:,}"
        )
    click.echo(f"written to {out}", err=True)


def _measured(model: str, source: str, options: dict[str, Any], group: Group) -> Result | None:
    """The key model's NLLs with short and with long context; None in all processes but the first."""
    from ..checkpoints.locating import find_model
    from ..evals.data import documents as data_documents
    from ..evals.data import key_tokens, sources
    from ..evals.running import perplexity

    texts = sources.read_texts(
        source, split=options["split"], text_field=options["text_field"], concat=options["concat"]
    )
    folder, trusted = find_model(model, options["revision"]), options["trust_remote_code"]
    tokenizer = load_tokenizer(folder, trust_remote_code=trusted)
    documents = data_documents.tokenize(texts, tokenizer)
    device = group.world.device(options["device"])
    loaded = load_model(folder, options["dtype"], device, trust_remote_code=trusted)
    lengths = key_tokens.windows_of(perplexity.trained_length(loaded), options["window"], options["short"])
    stride = options["stride"] or max(1, lengths[0] // 2)
    chosen = perplexity.PerplexityOptions(
        stride=stride, source=source, path=folder, progress=group.world.leads, short_context=False
    )
    corpus = perplexity.Corpus(documents, lengths, tokenizer, options["bos"], chosen)
    run = perplexity.PerplexityRun(loaded, corpus, [], None, chosen)
    run.run(group=group)
    return run.result() if group.world.leads else None
