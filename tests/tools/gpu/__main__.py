"""What one accelerator shows, on random weights and without a network: ``make gpu``.

On a bare machine: ``PYTHONPATH=.:tests/tools python3 -m gpu --out DIR``. It needs torch, transformers, numpy,
safetensors and pydantic (wheels on PYTHONPATH will do).

Parts run in the order of their weight. A part that would take longer than what is left of ``--minutes`` is left out,
and shorter ones after it still run. DIR/gpu.json and DIR/gpu.md are complete after every figure; gpu.md is the section
for docs/benchmarks.md, which ``make bench`` keeps. ``--tiny`` runs every part with tiny models, on a processor too.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch
import transformers

from . import parts
from .measuring import BEGAN, Bench, free

PARTS: dict[str, tuple[Callable[[Bench], None], float]] = {
    "environment": (parts.environment, 1),
    "patch": (parts.patch_and_verify, 32),
    "kernels": (parts.kernels, 16),
    "equality": (parts.equality, 4),
    "resuming": (parts.resuming, 14),
    "llama": (parts.llama_at_length, 92),
    "qwen": (parts.qwen_at_length, 48),
    "longest": (parts.longest_window, 40),
    "sliding": (parts.sliding_windows, 9),
    "memory": (parts.out_of_memory, 20),
    "eval": (parts.default_eval, 15),
    "search": (parts.searching, 130),
    "recommend": (parts.recommending, 25),
}
"""The parts by name, and the seconds that each is expected to take: a quarter more than it took on an H100, longer for
``longest`` and ``memory``, which have changed since."""


def main() -> int:
    """Runs the parts; returns 1 if one of them failed."""
    shown = "\n".join(f"  {name:12} {seconds:4.0f} s" for name, (_, seconds) in PARTS.items())
    parser = argparse.ArgumentParser(
        "gpu",
        description=f"{__doc__}\nThe parts, and the seconds to expect on an H100:\n{shown}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    out = os.environ.get("OUT", "build/gpu")
    parser.add_argument("--out", type=Path, default=Path(out), help=f"the folder for the results (default: {out})")
    parser.add_argument("--tiny", action="store_true", help="tiny models")
    parser.add_argument("--device", help="cuda or cpu (default: cuda where there is one)")
    parser.add_argument("--minutes", type=float, default=9.5, help="for all parts (default: 9.5)")
    parser.add_argument("--parts", help="names, separated by commas (default: all)")
    parser.add_argument("--peak", type=float, default=989.4e12, help="dense bf16 operations per second (default: H100)")
    parser.add_argument("--long", type=int, default=131072, help="the length of the 8B")
    parser.add_argument("--longer", type=int, default=262144, help="the length of the 0.6B")
    given = parser.parse_args()
    names = ["environment", *given.parts.split(",")] if given.parts else list(PARTS)
    if unknown := [name for name in names if name not in PARTS]:
        parser.error(f"no part {unknown[0]!r}; choose from {', '.join(PARTS)}")
    transformers.logging.set_verbosity_error()
    given.out.mkdir(parents=True, exist_ok=True)
    device = torch.device(given.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    lengths = (512, 1024) if given.tiny else (given.long, given.longer)
    bench = Bench(device, given.tiny, given.out, given.peak, lengths)
    failed = [name for name in names if not _run(bench, name, 60 * given.minutes)]
    print(bench.page(), end="")
    return min(1, len(failed))


def _run(bench: Bench, name: str, seconds: float) -> bool:
    """Runs a part, or leaves it out if it would take too long; returns whether it did not fail."""
    part, expected = PARTS[name]
    start = time.perf_counter()
    left = BEGAN + seconds - start
    if not bench.tiny and left < expected:
        bench.say("left out", **{name: f"{expected:.0f} s expected, {left:.0f} s left"})
        return True
    try:
        part(bench)
    except Exception as error:  # the other parts still run: an accelerator is rarely at hand
        traceback.print_exc()
        bench.say("failed", **{name: f"{type(error).__name__}: {error}"})
        return False
    finally:
        free(bench.on_gpu)
        bench.say("seconds", **{name: time.perf_counter() - start, f"{name}, expected": expected})
    return True


if __name__ == "__main__":
    sys.exit(main())
