"""``ropescale restore DIR``: undoes ``ropescale patch --in-place``."""

from __future__ import annotations

import click

from ..output.formatting import visible
from .completion import Place
from .options import print_json, put, sectioned_command


@sectioned_command("restore", {"The result": ["as_json"]}, click.Argument(["folder"], type=Place(), metavar="DIR"))
def command(folder: str, as_json: bool) -> None:
    """Put the checkpoint DIR back to what it was before `ropescale patch --in-place`, byte for byte.

    Also works where the patching, or an earlier restore, was interrupted.

    \b
    Example:
      ropescale restore ./llama
    """
    from ..checkpoints.patching import restore

    path = restore(folder)
    if as_json:
        print_json({"restored": str(path)}, path)
    else:
        put(f"{visible(str(path))} is as it was before it was patched in place", path)
