"""``python -m ropescale.evals.reference -o OUT``: trains the reference model, or one of another geometry."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import click


@click.command()
@click.option("-o", "out", type=click.Path(path_type=Path), required=True, help="The folder to write.")
@click.option("--steps", type=click.IntRange(min=1), help="Training steps.  [default: the recipe's]")
@click.option("--seed", type=int, help="For the weights and the text.  [default: the recipe's]")
@click.option("--length", type=click.IntRange(min=2), help="Tokens of a training window.  [default: the recipe's]")
@click.option("--head-dim", type=int, help="Coordinates of a head, 32, 64 or 128.  [default: the recipe's]")
@click.option("--theta", type=click.FloatRange(min=1), help="The base of RoPE.  [default: the recipe's]")
def main(out: Path, **given: int | float | None) -> None:
    """Train the reference model on the running Python's standard library."""
    from .training import Recipe, train

    chosen: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    train(out, dataclasses.replace(Recipe(), **chosen))


if __name__ == "__main__":
    main()
