"""``python -m ropescale.evals.reference -o OUT [--steps N] [--seed N]``: trains the reference model."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click


@click.command()
@click.option("-o", "out", type=click.Path(path_type=Path), required=True, help="The folder to write.")
@click.option("--steps", type=click.IntRange(min=1), help="Training steps.  [default: the recipe's]")
@click.option("--seed", type=int, help="For the weights and the text.  [default: the recipe's]")
def main(out: Path, steps: int | None, seed: int | None) -> None:
    """Train the reference model on the running Python's standard library."""
    from .training import Recipe, train

    given = {"steps": steps, "seed": seed}
    train(out, dataclasses.replace(Recipe(), **{key: value for key, value in given.items() if value is not None}))


if __name__ == "__main__":
    main()
