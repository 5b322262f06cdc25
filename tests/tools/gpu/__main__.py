"""What one accelerator shows, on random weights and without a network: ``make gpu``.

On a bare machine: ``PYTHONPATH=.:tests/tools python3 -m gpu --out DIR``.

Needs torch, transformers, accelerate, numpy and pydantic. ``--tiny`` runs every part on a processor. Parts run in the
order of their weight, and a part that would begin after ``--seconds`` is left out; DIR/gpu.json is complete after every
figure.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import transformers

from . import parts
from .measuring import BEGAN, Bench, free


def main() -> int:
    """Runs the parts; returns 1 if one of them failed."""
    parser = argparse.ArgumentParser("gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="the folder for gpu.json")
    parser.add_argument("--tiny", action="store_true", help="tiny models")
    parser.add_argument("--device", help="cuda or cpu (default: cuda where there is one)")
    parser.add_argument("--seconds", type=float, default=450, help="no part begins later")
    parser.add_argument("--parts", help="names, separated by commas (default: all)")
    parser.add_argument("--peak", type=float, default=989.4e12, help="dense bf16 operations per second (default: H100)")
    parser.add_argument("--long", type=int, default=131072, help="the length of the 8B")
    parser.add_argument("--longer", type=int, default=262144, help="the length of the 0.6B")
    given = parser.parse_args()
    transformers.logging.set_verbosity_error()
    device = torch.device(given.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    bench = Bench(device, given.tiny, given.out, given.peak)
    long, longer = (512, 1024) if given.tiny else (given.long, given.longer)
    known: dict[str, Callable[[Bench], None]] = {
        "environment": parts.environment,
        "patch": parts.patch_and_verify,
        "kernels": parts.kernels,
        "equality": parts.equality,
        "resuming": parts.resuming,
        "llama": partial(parts.llama_at_length, length=long),
        "qwen": partial(parts.qwen_at_length, length=longer),
        "sliding": parts.sliding_windows,
        "eval": parts.default_eval,
        "search": parts.searching,
        "recommend": parts.recommending,
        "memory": parts.out_of_memory,
    }
    names = given.parts.split(",") if given.parts else list(known)
    if unknown := [name for name in names if name not in known]:
        parser.error(f"no part {unknown[0]!r}; choose from {', '.join(known)}")
    failed = [name for name in names if not _run(bench, name, known[name], given.seconds)]
    return min(1, len(failed))


def _run(bench: Bench, name: str, part: Callable[[Bench], None], seconds: float) -> bool:
    """Runs a part, or leaves it out if it is too late; returns whether it did not fail."""
    start = time.perf_counter()
    if start - BEGAN > seconds:
        bench.say("left out", **{name: "no time left"})
        return True
    try:
        part(bench)
    except Exception as error:  # the other parts still run: an accelerator is rarely at hand
        traceback.print_exc()
        bench.say("failed", **{name: f"{type(error).__name__}: {error}"})
        return False
    finally:
        free(bench.on_gpu)
        bench.say("seconds", **{name: time.perf_counter() - start})
    return True


if __name__ == "__main__":
    sys.exit(main())
