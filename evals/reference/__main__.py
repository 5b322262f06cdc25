"""``python -m ropescale.evals.reference -o OUT``: trains the reference model, teaches it, or writes the taught one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from ...errors import RopescaleError

_TEACHING = ("steps", "seed")
"""What may be chosen of the teaching."""


@click.command()
@click.option("-o", "out", type=click.Path(path_type=Path), required=True, help="The folder to write.")
@click.option("--taught", is_flag=True, help="Write the model that was taught to answer, as a checkpoint of its own.")
@click.option("--teach", is_flag=True, help="Train the adapter that teaches it to answer (the extra adapters).")
@click.option("--steps", type=click.IntRange(min=1), help="Training steps.  [default: the recipe's]")
@click.option("--seed", type=int, help="For the weights and the text.  [default: the recipe's]")
@click.option("--length", type=click.IntRange(min=2), help="Tokens of a training window.  [default: the recipe's]")
@click.option("--head-dim", type=int, help="Coordinates of a head, 32, 64 or 128.  [default: the recipe's]")
@click.option("--theta", type=click.FloatRange(min=1), help="The base of RoPE.  [default: the recipe's]")
def main(out: Path, taught: bool, teach: bool, **given: int | float | None) -> None:
    """Train the reference model on the running Python's standard library.

    With --taught, write the one that was taught to answer `ropescale passkey`; with --teach, teach it again.
    """
    chosen: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if taught and teach:
        raise click.UsageError("--taught writes what --teach makes; give one of them")
    if taught:
        _refuse(chosen, "--taught")
    elif teach:
        _refuse((name for name in chosen if name not in _TEACHING), "--teach")
    try:
        _write(out, taught, teach, chosen)
    except RopescaleError as error:
        raise click.UsageError(str(error)) from error


def _refuse(names: Iterable[str], beside: str) -> None:
    """Refuses options that would have no effect."""
    for name in names:
        raise click.UsageError(f"--{name.replace('_', '-')} has no effect with {beside}; leave it out")


def _write(out: Path, taught: bool, teach: bool, chosen: dict[str, Any]) -> None:
    if taught:
        from .taught import save_taught

        save_taught(out)
    elif teach:
        from . import teaching

        teaching.teach(out, dataclasses.replace(teaching.TeachingRecipe(), **chosen))
    else:
        from .training import Recipe, train

        train(out, dataclasses.replace(Recipe(), **chosen))


if __name__ == "__main__":
    main()
