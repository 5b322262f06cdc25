"""``python -m ropescale.evals.reference --taught -o OUT``: writes the reference model that was trained to answer."""

from __future__ import annotations

from pathlib import Path

import click

from ...errors import RopescaleError
from . import save_taught


@click.command()
@click.option("-o", "out", type=click.Path(path_type=Path), required=True, help="The folder to write.")
@click.option("--taught", is_flag=True, required=True, help="Write the merged model as a checkpoint.")
def main(out: Path, taught: bool) -> None:
    """Write the reference model that was trained to answer `ropescale retrieval`."""
    try:
        save_taught(out)
    except RopescaleError as error:
        raise click.UsageError(str(error)) from error


if __name__ == "__main__":
    main()
