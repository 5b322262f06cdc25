"""``ropescale finetune MODEL --schedule SPEC --data SRC -o OUT``: the short adaptation after a schedule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import chain
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from .completion import Place
from .options import (
    DTYPES,
    LOADING,
    MODEL_SECTION,
    READING,
    REQUEST_SECTIONS,
    Length,
    Lengths,
    data_option,
    model_argument,
    out_option,
    print_result,
    request_of,
    request_options,
    seed_option,
    shared_options,
    take,
)
from .running import notes
from .sections import in_sections

if TYPE_CHECKING:
    from ..evals.data.chats import Unread
    from ..evals.data.sources import TextSource
    from ..evals.finetuning.job import TrainingJob
    from ..evals.finetuning.outcome import Outcome
    from ..evals.finetuning.running import Adaptation
    from ..evals.parallel.processes import World
    from ..evals.running.progress import Notes

_SECTIONS = {
    "The training": "source steps recipe batch learning_rate warmup decay length lora rank mixed pose seed",
    **REQUEST_SECTIONS,
    "The text": "split text_field glob encoding",
    "Measuring": "eval_source eval_lengths eval_every eval_windows",
    "Memory": "micro_batch bf16 checkpointing",
    "The result": "out save_every fresh as_json",
    **MODEL_SECTION,
}


@click.command("finetune", cls=in_sections(_SECTIONS))
@model_argument()
@request_options("one")
@data_option("What to train on, as for `eval`.")
@click.option("--steps", type=click.IntRange(1), metavar="N", help="Of the optimizer (pi: 1,000; yarn: 400).")
@click.option(
    "--recipe", type=click.Choice(["pi", "yarn"]), default="yarn", show_default=True, help="The paper's numbers."
)
@click.option("--batch", type=click.IntRange(1), metavar="N", help="Windows of a step, over all processes (both: 64).")
@click.option("--learning-rate", type=float, metavar="R", help="At its peak (both recipes: 2e-5).")
@click.option("--warmup", type=click.IntRange(0), metavar="N", help="Steps to the peak (both recipes: 20).")
@click.option(
    "--decay", type=click.Choice(["constant", "linear", "cosine"]), help="After the warm-up (both: constant)."
)
@click.option("--length", type=Length(), metavar="N", help="Positions of a window (default: what the schedule is for).")
@click.option("--lora", is_flag=True, help="Train an adapter, with norms and embeddings (extra adapters).")
@click.option("--rank", type=click.IntRange(1), metavar="N", help="Of the adapter (default: 8).")
@click.option("--mixed", type=Length(), metavar="N", help="Cut half of the batches into windows of N positions.")
@click.option("--pose", type=Length(), metavar="N", help="Windows of N positions that skip up to the length (PoSE).")
@seed_option("Of the order of windows.")
@shared_options(*READING, "revision", "trust_remote_code", "as_json")
@click.option(
    "--eval-data", "eval_source", type=Place(), multiple=True, metavar="SRC", help="Measure perplexity on this."
)
@click.option("--eval-lengths", type=Lengths(), metavar="N,...", help="At these lengths, before and after.")
@click.option("--eval-every", type=click.IntRange(1), metavar="N", help="And every N steps.")
@click.option("--eval-windows", metavar="N|all", help="Windows of each document, as `eval --windows`.")
@click.option(
    "--micro-batch", type=click.IntRange(1), default=1, show_default=True, metavar="N", help="Windows at a time."
)
@click.option("--bf16/--no-bf16", default=None, help="Compute in bfloat16 (default: on accelerators).")
@click.option("--checkpointing", is_flag=True, help="Less memory for activations, a third more time.")
@click.option(
    "--save-every",
    type=click.IntRange(1),
    default=50,
    show_default=True,
    metavar="N",
    help="Steps that a kill may cost.",
)
@click.option("--dtype", type=click.Choice(DTYPES), help="Of the weights that are trained (default: float32).")
@click.option("--device", metavar="D", help="Give cpu to leave accelerators alone.")
@out_option("The folder of the result.", required=True)
@click.option("--fresh", is_flag=True, help="Begin again, instead of continuing what is in OUT-training.")
def command(
    model: str, source: Sequence[str], eval_source: Sequence[str], out: str, as_json: bool, fresh: bool, **options: Any
) -> None:
    """Adapt MODEL to a schedule by a short training, proved live from the first step to the saved file.

    Windows are packed from the text and begin with BOS. OUT is a checkpoint as `ropescale patch` writes it, with the
    trained weights (with --lora the adapter and its base). Until it is there, everything is in OUT-training: the same
    command continues after a kill, with the same result.

    Many processes share a batch: `torchrun --nproc_per_node 8 -m ropescale finetune ...`.

    \b
    Example:
      ropescale finetune CKPT --schedule yarn:factor=8 --data BOOKS --steps 400 -o CKPT-8x \\
        --eval-data TEST --eval-lengths 4k,32k
    """
    from ..evals.parallel.processes import one_voice, world

    here = world()
    with one_voice(here):
        outcome = _prepared(model, source, eval_source, out, options, here).run(fresh)
    if not here.leads:
        return
    print_result(as_json, outcome.to_dict, outcome.to_markdown)
    for line in _next(outcome, eval_source):
        click.echo(line, err=True)


_RECIPE = ("batch", "learning_rate", "warmup", "decay")


def _prepared(
    model: str, source: Sequence[str], eval_source: Sequence[str], out: str, options: dict[str, Any], here: World
) -> Adaptation:
    from ..adapters.finding import find_loadable
    from ..errors import DataError
    from ..evals.data.sources import ReadOptions, TextSource
    from ..evals.finetuning.preflight import Preflight

    if bool(eval_source) != bool(options["eval_lengths"]):
        raise DataError(
            "eval_data and eval_lengths belong together; give both, or neither", "eval_data", "eval_lengths"
        )
    job, reading = _job(options), take(options, READING)
    options["schedule"] = options["schedule"] or "as-is"  # of a folder that carries one
    loading = take(options, LOADING)
    request = request_of(options)
    folder, adapter = find_loadable(model, loading["revision"], weights=False)
    Preflight(model, folder, adapter is not None, request, job, out, loading["device"]).check(here.size)
    sources = [TextSource(names, ReadOptions(**reading)) for names in (source, eval_source)]
    texts, tested = (chain.from_iterable(each.texts().values()) for each in sources)

    from ..evals.finetuning.running import Adaptation
    from ..evals.running.preparing import Checkpoint  # with torch, so after all that can be wrong without it

    told = notes(here)
    texts, tested = (_telling(each, read, told) for each, read in zip(sources, (texts, tested), strict=True))
    return Adaptation(Checkpoint(model, **loading), request, job, texts, tested, out, here, told, named=True)


def _telling(source: TextSource, texts: Iterator[Unread], told: Notes) -> Iterator[Unread]:
    """Yields texts, and says at the end which files of folders were none."""
    yield from texts
    if source.left_out:
        told.tell(f"left out: {source.left_out}")


def _job(options: dict[str, Any]) -> TrainingJob:
    from ..evals.finetuning.job import TrainingJob
    from ..evals.finetuning.recipes import STEPS, recipe

    name = options.pop("recipe")
    chosen = recipe(name).with_changes(**take(options, _RECIPE))
    options["steps"] = options["steps"] or STEPS[name]
    given = take(options, [each.name for each in fields(TrainingJob)])
    return TrainingJob(recipe=chosen, **{**given, "eval_lengths": given["eval_lengths"] or ()})


def _next(outcome: Outcome, eval_source: Sequence[str]) -> Iterator[str]:
    """Yields commands that come next."""
    out = quote(str(outcome.folder))
    yield "next:"
    yield f"  ropescale verify {out}"
    if outcome.result is not None:
        sources = " ".join(f"--data {quote(each)}" for each in eval_source)
        lengths = ",".join(map(str, outcome.result.lengths))
        yield f"  ropescale eval {out} {sources} --lengths {lengths}"
        yield f"  ropescale report {quote(str(outcome.measured))}/* -o report.html"
    yield f"  ropescale export {out} --for vllm"
