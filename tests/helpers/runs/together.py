"""A command in several processes, forked of this one, which find each other as torchrun's workers do."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from torch.distributed import TCPStore

from ropescale.cli.main import main


def together(size: int, words: list[str], out: Path) -> list[tuple[str, str]]:
    """Runs a command in so many processes, all of which must end well; returns what each one printed.

    Args:
        out: where each process leaves that, in files of this name with its number.
    """
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    children = []
    for rank in range(size):
        children.append(os.fork())
        if children[-1] == 0:
            try:
                _run(rank, size, store.port, words, out)
            finally:
                os._exit(1)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    printed = [tuple(Path(f"{out}.{rank}.{name}").read_text() for name in ("out", "err")) for rank in range(size)]
    assert not any(codes), printed
    return printed


def _run(rank: int, size: int, port: int, words: list[str], out: Path) -> None:
    """Runs a command in a forked process, which ends here."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "localhost"}
    os.environ |= {"MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    with open(f"{out}.{rank}.out", "w") as sys.stdout, open(f"{out}.{rank}.err", "w") as sys.stderr:
        code = main(words)
    os._exit(code)
