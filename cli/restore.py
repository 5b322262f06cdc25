"""``ropescale restore DIR``: undoes ``ropescale patch --in-place``."""

from __future__ import annotations

import click

from ..output.formatting import visible
from .options import Place, print_result, sectioned_command


@sectioned_command("restore", {"The result": ["as_json"]}, click.Argument(["folder"], type=Place(), metavar="DIR"))
def command(folder: str, as_json: bool) -> None:
    """Restore the checkpoint DIR to its state before `ropescale patch --in-place`, byte for byte.

    \b
    Examples:
      ropescale restore ./llama
      ropescale restore ./llama --json

    Also works after an interrupted patch or restore.
    """
    from ..checkpoints.patching import restore

    path = restore(folder)
    said = f"{visible(str(path))} is restored to its state before it was patched in place"
    print_result(as_json, lambda: {"restored": str(path)}, lambda: said, path)
