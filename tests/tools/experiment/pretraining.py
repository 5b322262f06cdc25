"""Training from scratch, until the time is over."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import torch

from .lab import Lab
from .training import build, is_compiled, loss_sum, optimizer_of, set_compiled, take_step, weights_of

_EAGER_STEPS, _TIMED_STEPS = 8, 24
"""The first steps run eagerly, the next ones compiled; then the faster way goes on."""

COLUMNS = ["step", "tokens", "seconds", "loss", "held out"]


class Pretraining:
    """A training from scratch. The rate follows the clock (or the steps), so that it ends near zero.

    Attributes:
        curve: rows of ``COLUMNS``; "held out" is None in most.
        times: seconds of the first steps, by mode.
    """

    def __init__(self, lab: Lab) -> None:
        self._lab, self._settings = lab, lab.settings
        self._model = build(lab, torch.float32).train()
        self._optimizer = optimizer_of(lab, self._model, decay=0.1)
        self._random = np.random.default_rng(self._settings.seed)
        self._order: list[int] = []
        self._seconds = min(self._settings.train_seconds, lab.left() - 5)
        self._step = self._seen = 0
        self._mode, self._last = "eager", 0.0
        self.times: dict[str, list[float]] = {"eager": [], "compiled": []}
        self.curve: list[list[Any]] = []

    def run(self) -> dict[str, Any]:
        """Trains, keeps the weights, and returns the entry of the results."""
        lab, self._began = self._lab, time.perf_counter()
        while (progress := self._progress()) < 1:
            self._advance(progress)
        lab.synchronize()
        spent, final = time.perf_counter() - self._began, validation(lab, self._model)
        set_compiled(lab, self._model, False)
        lab.save_weights(weights_of(self._model))
        mfu = 3 * lab.sizes.per_token(lab.sizes.trained) * self._seen / spent / self._settings.peak
        lab.mfu = mfu if lab.on_gpu else self._settings.mfu
        epochs = self._seen / len(lab.corpus.stream)
        lab.say(
            f"trained {self._step} steps, {self._seen / 1e6:.1f}M tokens ({epochs:.2f} epochs) in {spent:.0f} s, "
            f"{mfu:.1%} of peak, {self._mode}; held-out loss {final:.4f}"
        )
        return {
            "steps": self._step,
            "tokens": self._seen,
            "seconds": spent,
            "mfu": lab.mfu,
            "mode": self._mode,
            "timing": self.times,
            "held_out_nll": final,
            "curve": self.curve,
            "columns": COLUMNS,
        }

    def _progress(self) -> float:
        steps = self._settings.train_steps
        by_steps = self._step / steps if steps else 0.0
        return max(by_steps, (time.perf_counter() - self._began) / self._seconds)

    def _next(self) -> torch.Tensor:
        """Returns the windows of a step; every epoch has another order and offset."""
        rows, length = self._settings.rows, self._lab.sizes.trained
        if len(self._order) < rows:
            count = (len(self._lab.corpus.stream) - length) // length
            self._order = list(self._random.permutation(count) * length + self._random.integers(length))
        return self._lab.windows([self._order.pop() for _ in range(rows)], length)

    def _advance(self, progress: float) -> None:
        cosine = 0.5 * (1 + math.cos(math.pi * progress)) * 0.98 + 0.02
        rate = self._settings.rate * min(1.0, (self._step + 1) / self._settings.warm_up) * cosine
        ids = self._next()
        start = self._time()
        try:
            loss = take_step(self._lab, self._model, self._optimizer, ids, rate)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            if self._mode != "compiled":
                raise
            self._lab.say("compiling failed:", repr(error)[:300])
            self._use("eager")
            return
        if self._step < _TIMED_STEPS:
            self.times[self._mode].append(self._time() - start)
        self._step += 1
        self._seen += ids.numel()
        self._choose_mode()
        self._watch(loss, rate)

    def _time(self) -> float:
        """Returns the time; during the timed steps, after the device has finished."""
        if self._step < _TIMED_STEPS:
            self._lab.synchronize()
        return time.perf_counter()

    def _use(self, mode: str) -> None:
        set_compiled(self._lab, self._model, mode == "compiled")
        self._mode = mode

    def _choose_mode(self) -> None:
        if self._settings.compiling and self._step == _EAGER_STEPS:
            self._use("compiled")
        if self._step == _TIMED_STEPS:  # the first steps of each mode warm up
            fast = {mode: float(np.median(each[3:])) for mode, each in self.times.items() if len(each) > 4}
            if self._mode == "compiled" and fast.get("compiled", math.inf) > fast["eager"]:
                self._use("eager")
            self._lab.say(f"seconds a step {fast}, using {self._mode}")

    def _watch(self, loss: torch.Tensor, rate: float) -> None:
        """Adds to the curve now and then, which waits for the device, so that the clock is right."""
        validated = self._step % self._settings.validate_every == 0
        late = time.perf_counter() - self._last > 10
        if not (self._step <= 5 or self._step % 50 == 0 or late or validated):
            return
        value, self._last = float(loss), time.perf_counter()
        if not math.isfinite(value):
            raise RuntimeError(f"the loss is {value} at step {self._step}")
        spent = round(self._last - self._began, 2)
        held = round(validation(self._lab, self._model), 4) if validated else None
        self.curve.append([self._step, self._seen, spent, round(value, 4), held])
        if validated:
            tokens = f"{self._seen / 1e6:.1f}M tokens"
            self._lab.say(f"step {self._step}, {tokens}: loss {value:.4f}, held out {held}, rate {rate:.2e}")


@torch.no_grad()
def validation(lab: Lab, model: Any) -> float:
    """Returns the loss per token on the starts of the documents to choose by, eagerly: another shape would compile."""
    was = is_compiled(model)
    set_compiled(lab, model, False)
    model.eval()
    rows = torch.from_numpy(lab.corpus.choosing[:, : lab.sizes.trained]).to(lab.device)
    total = sum(float(loss_sum(lab, model, rows[at : at + 8])) for at in range(0, len(rows), 8))
    model.train()
    if was:
        set_compiled(lab, model, True)
    return total / (len(rows) * (lab.sizes.trained - 1))
