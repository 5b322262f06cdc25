"""How good the estimate of a run's time is: ``python estimates.py``, about six minutes of one core.

Ten runs of `eval` that differ in lengths, schedules, windows and batches. Of each, the time left that would be
said after five warm seconds is compared with what was left then, both in CPU seconds of one thread, which other work on
the machine hardly moves. (`eval` says it only where more than a minute is left, and goes by the clock.)
"""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import torch

from ropescale.checkpoints.loading import load_model, load_tokenizer
from ropescale.evals import perplexity
from ropescale.evals.reference import CHECKPOINT, held_out_documents
from ropescale.evals.running import runner

RUNS: tuple[dict[str, Any], ...] = (
    {"lengths": "2k", "schedules": ["yarn:factor=8"]},
    {"lengths": "256,2k", "schedules": ["linear:factor=8", "yarn:factor=8"], "windows": 1},
    {"lengths": "256,512,1k,2k", "schedules": ["yarn:factor=8"], "truncation": False, "budget_tokens": 100_000},
    {"lengths": "256,1k", "schedules": ["dynamic:factor=4", "yarn:factor=4"], "budget_tokens": 60_000},
    {"lengths": "256,2k", "schedules": ["dynamic:factor=8"], "windows": 1},
    {"lengths": "1k", "schedules": ["ntk:factor=4", "abf:rope_theta=500000"], "batch_tokens": 1024, "windows": 3},
    {"lengths": "512,4k", "schedules": ["yarn:factor=16"], "windows": 1, "truncation_stride": 128},
    {"lengths": "2k", "schedules": ["yarn:factor=8"], "stride": 1024, "max_docs": 6},
    {"lengths": "256,3k", "schedules": ["llama3:factor=12", "linear:factor=12"], "windows": 1, "max_docs": 13},
    {"lengths": "256", "schedules": ["yarn:factor=8", "linear:factor=8", "ntk:factor=8"], "windows": 30},
)


SAID: list[tuple[float, float]] = []
"""The estimate of each run, and when it could be said."""

COUNT = runner.Runner._count


def counted(self: runner.Runner, batch: Any, passes: int, seconds: float) -> None:
    """Keeps the estimate."""
    before = self._said_time
    COUNT(self, batch, passes, seconds)
    if self._said_time and not before:
        SAID.append((self._work_left * self._warm_seconds / self._warm_work, time.process_time()))


ENDED: list[float] = []
"""When each run had scored its last batch."""


def main() -> None:
    torch.set_num_threads(1)
    runner.time = SimpleNamespace(perf_counter=time.process_time)  # type: ignore[assignment]
    runner.Runner._count = counted  # type: ignore[method-assign]
    runner.Runner._note_timing = lambda self: ENDED.append(time.process_time())  # type: ignore[method-assign]
    model, tokenizer, texts = load_model(CHECKPOINT), load_tokenizer(CHECKPOINT), held_out_documents()
    within = 0
    print("| run | said | was left | ratio |\n|---|---:|---:|---:|")
    for run in RUNS:
        SAID.clear()
        about = {"short_context": False, **run}
        perplexity(model, texts, tokenizer=tokenizer, **about)  # type: ignore[arg-type]
        words = ", ".join(f"{name} {value}" for name, value in run.items())
        if not SAID:
            print(f"| {words} | - | - | shorter than five warm seconds |")
            continue
        said, at = SAID[0]
        left = ENDED[-1] - at
        within += max(said / left, left / said) <= 1.5 if min(said, left) > 0 else 0
        print(f"| {words} | {said:.1f} s | {left:.1f} s | {said / max(left, 1e-9):.2f} |", flush=True)
    print(f"\n{within} of {len(RUNS)} within a factor of 1.5")


if __name__ == "__main__":
    main()
