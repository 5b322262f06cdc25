"""``ropescale restore DIR``: undoes ``ropescale patch --in-place``."""

import click

from ..output.formatting import visible
from .options import Place, sectioned_command, show


@sectioned_command("restore", {}, click.Argument(["folder"], type=Place(), metavar="DIR"))
def command(folder: str) -> None:
    """Restore the checkpoint DIR to its state before `ropescale patch --in-place`, byte for byte.

    \b
    Examples:
      ropescale restore ./llama
      ropescale restore ~/models/qwen3

    Also works after an interrupted patch or restore.
    """
    from ..checkpoints.patching import restore

    path = restore(folder)
    show([f"{visible(str(path))} is restored to its state before it was patched in place"], path)
