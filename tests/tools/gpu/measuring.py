"""The clock, the memory, the results file and the bare forward that everything is compared with."""

from __future__ import annotations

import gc
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile

import ropescale.evals
from ropescale.evals import Result

from .page import section
from .shapes import Shapes, flops

BEGAN = time.perf_counter()


class Bench:
    """A device, the results so far, and what every part needs.

    Args:
        out: the folder for ``gpu.json`` and ``gpu.md``, which are written after every figure.
        peak: the device's dense bf16 operations per second, for the share of it that is used (MFU).
        lengths: of the 8B and of the 0.6B.
    """

    def __init__(self, device: torch.device, tiny: bool, out: Path, peak: float, lengths: tuple[int, int]) -> None:
        self.device, self.tiny, self.out, self.peak, self.lengths = device, tiny, out, peak, lengths
        self.on_gpu = device.type == "cuda"
        self.name = torch.cuda.get_device_name(device) if self.on_gpu else "a processor"
        self.dtype = torch.bfloat16 if self.on_gpu or not tiny else torch.float32
        self.shapes = Shapes(tiny)
        self.results: dict[str, dict[str, Any]] = {}
        self._random = np.random.default_rng(0)

    def say(self, part: str, **facts: Any) -> None:
        """Prints figures, and adds them to the results."""
        self.results.setdefault(part, {}).update(facts)
        shown = (f"{name}={_shown(value)}" for name, value in facts.items())
        print(f"[{time.perf_counter() - BEGAN:6.1f}s] {part}: {', '.join(shown)}", flush=True)
        (self.out / "gpu.json").write_text(json.dumps(self.results, indent=1, default=str))
        (self.out / "gpu.md").write_text(self.page())

    def page(self) -> str:
        """Returns the section for docs/benchmarks.md."""
        return section(self.results, time.time())

    def timed(self) -> Timed:
        """Returns a clock for a ``with`` block."""
        return Timed(self.on_gpu)

    def windows(self, model: torch.nn.Module, length: int, count: int) -> list[list[int]]:
        """Returns random windows of token ids."""
        vocabulary = model.config.get_text_config().vocab_size
        return [self._random.integers(5, vocabulary - 5, length).tolist() for _ in range(count)]

    def say_speed(self, part: str, name: str, model: torch.nn.Module, length: int, count: int, timed: Timed) -> None:
        """Adds the speed and memory of ``count`` windows."""
        figures = {
            "s": timed.seconds,
            "tokens/s": count * length / timed.seconds,
            "peak GB above weights": timed.above,
            "peak GB": timed.peak,
        }
        self.say(part, **{f"{name} {figure}": value for figure, value in figures.items()})

    def used(self, model: torch.nn.Module, length: int, timed: Timed) -> float:
        """Returns the share of the device's operations that one window used (MFU)."""
        return flops(model, length) / timed.seconds / self.peak


def _shown(value: object) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else str(value)


class Timed:
    """The seconds of a block, and its peak of accelerator memory in GB (not a number on a processor)."""

    def __init__(self, on_gpu: bool) -> None:
        self._on_gpu = on_gpu
        self.seconds = self.above = self.peak = float("nan")

    def __enter__(self) -> Timed:
        free(self._on_gpu)
        self._before = torch.cuda.memory_allocated() if self._on_gpu else 0
        self._start = time.perf_counter()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._on_gpu:
            torch.cuda.synchronize()
        self.seconds = time.perf_counter() - self._start
        if self._on_gpu:
            peak = torch.cuda.max_memory_allocated()
            self.above, self.peak = (peak - self._before) / 1e9, peak / 1e9


def free(on_gpu: bool) -> None:
    """Frees what nothing refers to, and restarts the record of the peak."""
    gc.collect()
    if on_gpu:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


@torch.inference_mode()
def bare(model: torch.nn.Module, windows: Sequence[Sequence[int]], batch: int = 1, rows: int = 4096) -> np.ndarray:
    """Returns the losses of a bare forward: the trunk without a cache, and the head in blocks in float32."""
    found = []
    for start in range(0, len(windows), batch):
        ids = torch.tensor(windows[start : start + batch], device=model.device)
        hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]
        hidden, targets = hidden.reshape(-1, hidden.shape[-1]), ids[:, 1:].reshape(-1)
        losses = torch.empty(len(targets), device=model.device)
        for at in range(0, len(targets), rows):
            logits = model.lm_head(hidden[at : at + rows]).float()
            losses[at : at + rows] = torch.nn.functional.cross_entropy(
                logits, targets[at : at + rows], reduction="none"
            )
        found.append(losses.cpu())
    return torch.cat(found).numpy()


@torch.inference_mode()
def whole_logits(model: torch.nn.Module, windows: Sequence[Sequence[int]]) -> np.ndarray:
    """Returns the losses of the naive loop: one window at a time, all its logits at once."""
    found = []
    for window in windows:
        ids = torch.tensor([window], device=model.device)
        logits = model(input_ids=ids, use_cache=False).logits[0, :-1].float()
        found.append(torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="none").cpu())
    return torch.cat(found).numpy()


def measured(
    model: torch.nn.Module,
    windows: list[list[int]],
    lengths: Sequence[int],
    schedules: Sequence[str] = (),
    **options: Any,
) -> Result:
    """Measures with ropescale; without further passes unless ``options`` ask for them.

    The model's folder holds nothing that would take time to hash, unless ``options`` name another.
    """
    with tempfile.TemporaryDirectory() as folder:
        model.config.save_pretrained(folder)
        plain = {"short_context": False, "truncation": False, "budget_tokens": 10**10, "path": folder}
        return ropescale.evals.perplexity(model, windows, lengths, list(schedules), **(plain | options))


FIRST = {"FlashAttention 2": SDPBackend.FLASH_ATTENTION, "cuDNN": SDPBackend.CUDNN_ATTENTION}


def preferring(kernel: str | None) -> AbstractContextManager[None]:
    """Returns a block in which a kernel of scaled dot product attention comes first; None for torch's own order."""
    if kernel is None:
        return nullcontext()
    rest = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    return sdpa_kernel([FIRST[kernel], *(each for each in rest if each != FIRST[kernel])], set_priority=True)


_WORDS = ("flash", "fmha", "attention", "cudnn", "mem_eff", "efficient")


def kernels_of(act: Callable[[], object], on_gpu: bool) -> list[tuple[str, float]]:
    """Returns the attention kernels that ran, longest first, with their milliseconds."""
    act()
    with profile(activities=[ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if on_gpu else [])) as seen:
        act()
    rows = [(each.key, getattr(each, "device_time_total", 0) or each.cpu_time_total) for each in seen.key_averages()]
    named = [(key, time / 1e3) for key, time in rows if any(word in key.lower() for word in _WORDS)]
    if on_gpu:  # the kernels themselves, not the operators that start them
        named = [row for row in named if not row[0].startswith(("aten::", "cuda"))] or named
    return sorted(named, key=lambda row: -row[1])[:4]


def losses_of(result: Result, number: int = 0) -> np.ndarray:
    """Returns all losses of a result's pass."""
    return np.concatenate(result.passes[number].nll)
