"""``ropescale reproduce``: the papers' claims on the bundled model."""

from __future__ import annotations

from collections.abc import Sequence

import click

from .options import out_option, print_result, shared_options, show
from .sections import in_sections
from .spelling import spelled

_SECTIONS = {"The arms": "only listed", "The result": "out as_json"}


@click.command("reproduce", cls=in_sections(_SECTIONS))
@click.option(
    "--only", multiple=True, metavar="ARM", help="Run this arm (and what it needs), not all; may be given again."
)
@click.option("--list", "listed", is_flag=True, help="Show the arms, their time and what is finished; run nothing.")
@shared_options("as_json")
@out_option("The folder.", default="ropescale-reproduction", show_default=True)
def command(only: Sequence[str], listed: bool, as_json: bool, out: str) -> None:
    """Run the papers' claims on context extension on the bundled model, from 256 to 2,048 tokens.

    Trains the model under each schedule with the machinery of `finetune`, measures it on held-out modules with that of
    `eval`, and says of each claim whether it holds here, with intervals. OUT has REPORT.md, pictures, results.json, and
    every checkpoint and measurement.

    Each arm is a step of its own, and the results are written after each. The same command continues after a kill, with
    the same result; a second one with other arms may run beside it.

    \b
    Example:
      ropescale reproduce --list
      ropescale reproduce --only untrained --only yarn -o OUT
    """
    from ..evals.reproducing.results import Reproduction
    from ..evals.reproducing.running import Reproducing
    from ..evals.running.progress import Notes

    folder = Reproduction.writable_folder(out)
    asked = Reproducing(folder, only, notes=Notes(True, spelled))
    if listed:
        show(asked.listed())
        return
    found = asked.run()
    if found is None:
        click.echo("nothing was measured yet", err=True)
    else:
        print_result(as_json, found.to_dict, found.to_markdown)
    click.echo(f"written to {folder}", err=True)
