"""a forward pass of 4,096 tokens with remapped positions, beside a plain one."""

from __future__ import annotations

import json
import subprocess
import sys

import models
import sides

LENGTH = 4096

PROGRAM = """
import json, sys
from contextlib import nullcontext
from pathlib import Path
import models, torch
from ropescale.evals import remapped
length, which = int(sys.argv[1]), sys.argv[2]
model, _ = models.reference()
rows = torch.arange(length)[None] % 2000
with torch.inference_mode(), remapped(model, length) if which == "remapped" else nullcontext():
    model.model(rows[:, :64], use_cache=False)
    Path("/proc/self/clear_refs").write_text("5")
    model.model(rows, use_cache=False)
lines = Path("/proc/self/status").read_text().splitlines()
print(json.dumps({line.split(":")[0]: int(line.split()[1]) for line in lines if line.startswith(("VmHWM", "VmRSS"))}))
"""


def measure(seconds: float) -> list[sides.Row]:
    """Returns the ratios of CPU time, and of the peak memory of a process with the loaded model."""
    import torch

    from ropescale.evals import remapped

    (model, documents), (plain, _) = models.reference(), models.reference()
    rows = torch.tensor([documents[0][:LENGTH]])

    @torch.inference_mode()
    def act(which: object) -> None:
        which.model(rows, use_cache=False)  # type: ignore[attr-defined]

    with remapped(model, LENGTH):
        acts = {"a plain forward pass": lambda: act(plain), "a remapped one": lambda: act(model)}
        found = sides.ratios(sides.in_turn(acts, seconds, sides.cpu), "a plain forward pass")
    peaks = [_peak(which) for which in ("remapped", "plain")]
    note = f"{peaks[0] / 1e3:,.0f} MB over {peaks[1] / 1e3:,.0f} MB"
    return [*found, sides.Row("peak memory, over that of a plain one", peaks[0] / peaks[1], note=note)]


def _peak(which: str) -> int:
    words = [sys.executable, "-c", PROGRAM, str(LENGTH), which]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return int(json.loads(done.stdout.splitlines()[-1])["VmHWM"])
