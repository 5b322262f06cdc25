"""One process against two over the same documents; only on a machine that does nothing else."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import sides

BUSY = 0.5
"""Cores in use by others, above which two processes would not have two."""


def measure(seconds: float) -> list[sides.Row]:
    """Returns the wall time of one process over that of two, loading included."""
    from ropescale.evals import reference

    load = sides.busy()
    if load > BUSY:
        print(f"processes: left out, the machine is busy ({load:.1f} cores in use)")
        return []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        pieces = [
            text[n : n + 8000] for text in reference.held_out_documents() for n in range(0, len(text) - 8000, 8000)
        ]
        for number, piece in enumerate(pieces[:200]):
            (folder / f"{number:03d}.txt").write_text(piece)
        run = ("-m", "ropescale", "eval", reference.CHECKPOINT, "--data", folder, "--lengths", "1k")
        two = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", 2, *run)
        seen = sides.in_turn({"1": run, "2": two}, seconds, _wall, warm=False)
    each = [a / b for a, b in zip(seen["1"], seen["2"], strict=True)]
    said = f"wall time, {statistics.median(seen['1']):.1f} s over {statistics.median(seen['2']):.1f} s"
    return [sides.Row("one process over two", statistics.median(each), min(each), max(each), "x", len(each), said)]


def _wall(words: tuple[object, ...]) -> float:
    start = time.monotonic()
    sides.command(*words)
    return time.monotonic() - start
