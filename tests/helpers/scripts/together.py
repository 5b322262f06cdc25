"""Runs commands in processes forked of one that has imported what they need: ``together.py PROCESSES COMMANDS OUT``.

COMMANDS are lists of words, as JSON. They run one after the other, each in so many processes, which find each other as
torchrun's workers do. What process 1 of command 0 writes goes to ``OUT/0.1.out`` and ``OUT/0.1.err``.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import transformers.models.llama.modeling_llama  # noqa: F401 (once, and not in every process)
from torch.distributed import TCPStore

from ropescale.cli.main import main
from ropescale.evals.results import saving

saving.drawn = lambda draw: b"\x89PNG"  # as in every test


def run(rank: int, size: int, port: int, words: list[str], out: Path) -> None:
    """Runs a command in a forked process, which ends here."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "localhost"}
    os.environ |= {"MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{out}.{rank}.{name}", os.O_WRONLY | os.O_CREAT), number)
    code = main(words)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def together(size: int, words: list[str], out: Path) -> None:
    """Runs a command in so many processes, all of which must end well."""
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    children = []
    for rank in range(size):
        children.append(os.fork())
        if children[-1] == 0:
            try:
                run(rank, size, store.port, words, out)
            finally:
                os._exit(1)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert not any(codes), Path(f"{out}.0.err").read_text()


if __name__ == "__main__":
    for number, command in enumerate(json.loads(sys.argv[2])):
        together(int(sys.argv[1]), command, Path(sys.argv[3]) / str(number))
