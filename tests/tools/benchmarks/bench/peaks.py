"""the peak of scoring 10,240 tokens with two layers, against its estimate (Linux)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import sides

SCRIPT = Path(__file__).parents[1] / "scoring_memory.py"


def measure(seconds: float) -> list[sides.Row]:
    """Returns a ratio for each family."""
    done = subprocess.run([sys.executable, SCRIPT], stdout=subprocess.PIPE, text=True, check=True, env=os.environ)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    note = "{:,.0f} MB over {:,.0f} MB"
    return [
        sides.Row(f"{name}: estimate, over peak", a / b, note=note.format(a / 1e6, b / 1e6)) for name, a, b in found
    ]
