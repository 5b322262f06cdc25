"""one process against two over the same documents; only on a machine that does nothing else."""

from __future__ import annotations

import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import sides

BUSY = 0.5
"""Cores in use by others, above which two processes would not have two."""


def measure(seconds: float) -> list[sides.Row]:
    """Returns one process over two: the whole commands, loading included, and the work alone."""
    from ropescale.evals import reference

    load = sides.busy()
    if load > BUSY:
        print(f"processes: left out, the machine is busy ({load:.1f} cores in use)")
        return []
    with tempfile.TemporaryDirectory() as place:
        texts, out = Path(place) / "texts", Path(place) / "out"
        texts.mkdir()
        pieces = [
            text[n : n + 8000] for text in reference.held_out_documents() for n in range(0, len(text) - 8000, 8000)
        ]
        for number, piece in enumerate(pieces[:200]):
            (texts / f"{number:03d}.txt").write_text(piece)
        run = ("-m", "ropescale", "eval", reference.CHECKPOINT, "--data", texts, "--lengths", "1k", "-o", out)
        two = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", 2, *run)
        acts = {"wall time of one process": run, "two": two}
        work: dict[str, list[float]] = {name: [] for name in acts}

        def wall(name: str) -> float:
            shutil.rmtree(out, ignore_errors=True)
            start = time.monotonic()
            sides.command(*acts[name])
            whole = time.monotonic() - start
            work[name].append(_seconds(out / "resume"))
            return whole

        seen = sides.in_turn({name: name for name in acts}, seconds, wall, warm=False)
    [whole], [alone] = sides.ratios(seen, "two"), sides.ratios(work, "two")
    return [whole, replace(alone, what=f"{alone.what}: from the first batch to the last")]


def _seconds(folder: Path) -> float:
    """Returns how long a run measured: from opening its store to the last batch in it."""
    return max(file.stat().st_mtime for file in folder.glob("*.records")) - (folder / "lock").stat().st_mtime
