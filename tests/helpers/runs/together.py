"""A command in several processes, forked of this one, which find each other as torchrun's workers do."""

from __future__ import annotations

import multiprocessing
import os
import sys
import traceback
from contextlib import redirect_stderr, redirect_stdout
from multiprocessing.connection import wait
from pathlib import Path

from torch.distributed import TCPStore

from ropescale.cli.main import main


def together(size: int, words: list[str], out: Path) -> list[tuple[str, str]]:
    """Runs a command in so many processes, all of which must end well; returns what each one printed.

    Where one fails, the others are killed: they would wait for it for minutes.

    Args:
        out: where each process leaves that, in files of this name with its number.
    """
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    paths = [tuple(Path(f"{out}.{rank}.{name}") for name in ("out", "err")) for rank in range(size)]
    fork = multiprocessing.get_context("fork")
    children = [fork.Process(target=_run, args=(rank, size, store.port, words, paths[rank])) for rank in range(size)]
    for child in children:
        child.start()
    running = {child.sentinel: child for child in children}
    while running:
        for sentinel in wait(list(running)):
            ended = running.pop(sentinel)
            ended.join()
            if ended.exitcode:
                for other in running.values():
                    other.kill()
    printed = [(out.read_text(), err.read_text()) for out, err in paths if err.exists()]
    assert not any(child.exitcode for child in children), "\n".join(err for _, err in printed)
    return printed


def _run(rank: int, size: int, port: int, words: list[str], paths: tuple[Path, Path]) -> None:
    """Runs a command in a forked process, and ends it with the command's code."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "localhost"}
    os.environ |= {"MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    with open(paths[0], "w") as out, open(paths[1], "w") as err, redirect_stdout(out), redirect_stderr(err):
        try:
            code = main(words)
        except BaseException:
            traceback.print_exc()
            code = 1
    sys.exit(code)
