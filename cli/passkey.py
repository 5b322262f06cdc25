"""``ropescale passkey MODEL --lengths ...``: retrieval, for several schedules."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import DataError
from ..models.loading import load_model, load_tokenizer
from .eval import keep, one_voice, plan_schedules
from .options import (
    Lengths,
    bos_option,
    factor_option,
    json_option,
    loading_options,
    model_argument,
    patching_options,
    print_json,
    schedules_option,
    target_length_option,
)

if TYPE_CHECKING:
    from ..evals.parallel.processes import Group, World
    from ..evals.passkey.running import RetrievalRun as Run

TASKS = ("passkey", "multi-key", "multi-value", "variable-tracking")


class Depths(click.ParamType):
    """Depths joined by commas (``0,0.25,1``), or how many (``5``)."""

    name = "depths"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        parts = [part.strip() for part in value.split(",") if part.strip()]
        if len(parts) == 1 and parts[0] != "0" and parts[0].isdecimal() and parts[0].isascii():
            if parts[0] == "1":
                self.fail("'1' may be one depth or the depth 1; write 1.0 for the depth", param, ctx)
            return int(parts[0][:9])
        try:
            return [float(part) for part in parts]
        except ValueError:
            self.fail(f"{value!r} are not depths; write them like 0,0.5,1, or how many, like 5", param, ctx)


@click.command("passkey")
@model_argument()
@click.option("--lengths", type=Lengths(), required=True, metavar="N,...", help="Positions, BOS and answer included.")
@click.option(
    "--depths",
    type=Depths(),
    default="5",
    show_default=True,
    metavar="D,...",
    help="0,0.5,1 (0 is first), or how many.",
)
@schedules_option()
@factor_option()
@target_length_option()
@click.option("--task", type=click.Choice(TASKS), default="passkey", show_default=True, help="What is asked.")
@click.option(
    "--trials", type=click.IntRange(1), default=10, show_default=True, metavar="N", help="Answers per length and depth."
)
@click.option("--seed", type=int, default=0, show_default=True, metavar="N", help="Of the texts and the numbers.")
@click.option("--haystack", metavar="FILE", help="Hide the numbers in this text instead of generated sentences.")
@click.option(
    "--threshold", type=float, default=0.85, show_default=True, metavar="P",
    help="Share of the best accuracy at the shortest length that counts for the effective length.",
)  # fmt: skip
@click.option("--baseline", metavar="SPEC", help="What the others are compared with (default: as-is).")
@click.option(
    "--batch-tokens", type=click.IntRange(1), default=8192, show_default=True, metavar="N", help="Fed at once."
)
@bos_option()
@patching_options()
@loading_options()
@json_option()
@click.option(
    "-o", "--out", metavar="OUT", help="Write results, every answer, heat maps and REPORT.md into this folder."
)
@click.option("--fresh", is_flag=True, help="Ask anew what is stored in OUT, instead of continuing.")
def command(model: str, lengths: list[int], as_json: bool, out: str | None, fresh: bool, **options: Any) -> None:
    """Measure whether numbers hidden in a long text are found, at each length and depth, under each schedule.

    The answer is in place and one forward pass scores it: it counts when every token of it is ranked first, so greedy
    decoding would write it. This works on base models. The answer's NLL tells schedules apart where none finds it; it
    falls with whatever makes the model better at that place, not only with finding.

    Tasks: passkey hides one number; multi-key a named one at every depth; multi-value one at every depth, all asked for
    in order; variable-tracking passes numbers from box to box.

    The model as it is always runs, and is what the others are compared with unless --baseline says otherwise.
    --factor and --target-length give the factor to every schedule that takes one and does not say it itself. With -o,
    every finished batch is kept in OUT/resume: the same command again continues where it was, whatever stopped it.

    Many processes share the prompts: `torchrun --nproc_per_node 8 -m ropescale passkey ...`. The answers do not depend
    on how many there are.
    """
    from ..evals.parallel.processes import joined, world
    from ..evals.passkey.results import retrieval_folder
    from ..evals.running.resuming import refuse_if_busy

    if out is None and fresh:
        raise DataError("--fresh is given, and no folder to start anew in; name it with -o")
    here = world()
    with one_voice(here), joined(here) as group:
        folder = None if out is None else retrieval_folder(out)
        if folder is not None and here.leads:
            refuse_if_busy(folder)
        if here.launched and here.leads:
            click.echo(f"{here} asking{here.hint}", err=True)
        run = prepare(model, lengths, options, here)
        if folder is None:
            run.run(group=group)
            _conclude(run, None, as_json, group)
        else:
            _ask_into(folder, run, fresh, as_json, group)


def _ask_into(folder: Path, run: Run, fresh: bool, as_json: bool, group: Group) -> None:
    from ..evals.running.resuming import opened

    with opened(folder, fresh, group) as kept:
        try:
            run.run(kept, group)
        except BaseException:  # Ctrl-C, logits that are not finite: hours may lie in what is done
            if group.world.leads:
                keep(run.result, f"{len(run.tables)} finished parts" if run.tables else "", kept, folder)
            raise
        _conclude(run, folder, as_json, group)


def _conclude(run: Run, folder: Path | None, as_json: bool, group: Group) -> None:
    """Prints the numbers and then writes them, so that a disk that is full takes nothing away."""
    if not group.world.leads:
        return
    result = run.result()
    if as_json:
        print_json(result.to_dict())
    else:
        click.echo(result.to_markdown())
    if folder is not None:
        click.echo(f"written to {result.save(folder)}", err=True)


def prepare(model: str, lengths: list[int], options: dict[str, Any], here: World) -> Run:
    """Reads and checks everything cheap first, and the weights last."""
    from ..checkpoints.locating import find_model
    from ..evals.data import windows
    from ..evals.passkey import running

    lengths = list(windows.check_lengths(lengths))
    depths = running.check_depths(options["depths"])
    patching = {key: options[key] for key in ("layers", "replace_scaling", "on_top")}
    chosen = running.RetrievalOptions(
        **{key: options[key] for key in ("trials", "seed", "threshold", "batch_tokens")},
        haystack=None if options["haystack"] is None else _haystack(options["haystack"]),
        patching=patching,
        source=options["haystack"],
        progress=here.leads,
    )
    schedules, baseline = plan_schedules(find_model(model, options["revision"], weights=False), options, patching)
    folder = find_model(model, options["revision"])
    trusted = options["trust_remote_code"]
    tokenizer = load_tokenizer(folder, trust_remote_code=trusted)
    quiz = running.Quiz(tokenizer, lengths, depths, options["task"], options["bos"], chosen)
    loaded = load_model(folder, options["dtype"], here.device(options["device"]), trust_remote_code=trusted)
    return running.RetrievalRun(loaded, quiz, schedules, baseline, dataclasses.replace(chosen, path=folder))


def _haystack(source: str) -> str:
    from ..evals.data import sources

    try:
        return "\n\n".join(text.text for text in sources.read_texts(source))
    except DataError as error:
        raise DataError(str(error).replace("--data", "--haystack")) from None
