"""``python -m ropescale.evals.training MODEL --lengths 32k,128k``: what training at a length takes, by the formulas."""

from __future__ import annotations

from pathlib import Path

import click

from ...checkpoints.locating import find_model
from ...errors import RopescaleError
from ...lengths import parse_lengths
from ...output.formatting import first_line
from .costs import ModelShape, table


@click.command()
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
@click.option("--lengths", required=True, metavar="N,...", help="Positions of a window, such as 32k,128k.")
def main(models: tuple[str, ...], lengths: str) -> None:
    """Print what training each MODEL at these lengths takes, by its config.json alone (a folder, or a Hub id)."""
    from transformers import AutoConfig

    try:
        asked = parse_lengths(lengths)
        folders = {Path(name).name: find_model(name, weights=False) for name in models}
        shapes = {name: ModelShape.of(AutoConfig.from_pretrained(folder)) for name, folder in folders.items()}
    except RopescaleError as error:
        raise click.UsageError(str(error)) from error
    except AttributeError as error:
        raise click.UsageError(f"not a dense model of Llama's kind: {first_line(error)}") from error
    click.echo("\n".join(table(shapes, asked)))


if __name__ == "__main__":
    main()
