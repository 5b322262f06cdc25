"""Training on from the trained model: fine-tuning at the target, and lessons in answering."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch

import ropescale

from .lab import Lab
from .plan import LONG_ARMS, SHORT_ARM
from .training import build, loss_sum, optimizer_of, set_compiled, set_rate, take_step, weights_of

STEPS = "ft_steps"
"""The entry of the results with the steps of the first arm, which all other arms take, too."""

_RESERVE = 12
"""Seconds that an arm needs besides its steps."""


class Tuning:
    """An arm of fine-tuning: whole windows of the target under a schedule, or as many tokens in short windows.

    Args:
        stages: all stages of this call, among which the first arm shares the time out.

    Attributes:
        spec: the schedule; None for the model as it is.
        live: whether ``ropescale.verify`` found the schedule in the model before the first step.
        steps: the steps taken.
        seconds: the time that they took.
        curve: rows of step, loss and seconds.
    """

    def __init__(self, lab: Lab, stage: str, stages: list[str]) -> None:
        self._lab, self._settings, self._stage = lab, lab.settings, stage
        self._arms = sum(each in LONG_ARMS for each in stages)
        self.spec = lab.schedules.arm(stage)
        self.live: bool | None = None
        self.steps, self.seconds = 0, 0.0
        self.curve: list[list[float]] = []

    @property
    def tokens(self) -> int:
        """The tokens read."""
        return self.steps * self._settings.tuning_rows * self._lab.sizes.target

    @property
    def share_of_peak(self) -> float:
        """The share of the device's operations that was used."""
        sizes = self._lab.sizes
        length = sizes.trained if self._stage == SHORT_ARM else sizes.target
        return 3 * self.tokens * sizes.per_token(length) / self.seconds / self._settings.peak

    def run(self) -> Any:
        """Trains, and returns the tuned model without the schedule, in the dtype of measurements."""
        lab, model = self._lab, self._model()
        starts, rows = self._starts(), self._settings.tuning_rows
        most = lab.results.get(STEPS) or min(self._settings.tuning_steps, len(starts) // rows)
        optimizer = optimizer_of(lab, model, decay=0.0)
        limit, start = lab.left() - _RESERVE, time.perf_counter()
        with ropescale.patch(model, self.spec) if self.spec else nullcontext():
            self._verify(model)
            while self.steps < most and time.perf_counter() - start < limit:
                ids = lab.windows(starts[self.steps * rows : (self.steps + 1) * rows], lab.sizes.target)
                if self._stage == SHORT_ARM:
                    ids = ids.reshape(-1, lab.sizes.trained)
                loss = take_step(lab, model, optimizer, ids, self._rate(most))
                if self.steps % 5 == 0 or self.steps == most - 1:
                    spent = time.perf_counter() - start
                    self.curve.append([self.steps, round(float(loss), 4), round(spent, 2)])
                self.steps += 1
                if self.steps == 10 and STEPS not in lab.results:
                    most = self._that_fit(most, limit)
        lab.synchronize()
        self.seconds = time.perf_counter() - start
        if self.steps < most:
            lab.say("no time left in step", self.steps)
        if STEPS not in lab.results:
            lab.store(STEPS, self.steps)
        lab.say(
            f"{self._stage}: {self.steps} steps in {self.seconds:.0f} s, {self.share_of_peak:.1%} of peak, "
            f"loss {self.curve[0][1]} to {self.curve[-1][1]}"
        )
        del optimizer
        lab.free()
        return build(lab, lab.dtype, weights_of(model))

    def _model(self) -> Any:
        """Returns the trained model in float32; all arms of a call share one, for what was compiled."""
        lab, weights = self._lab, self._lab.weights()
        if "tuned" not in lab.models:
            lab.free("base")
            lab.models["tuned"] = build(lab, torch.float32, weights)
        model = lab.models["tuned"]
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(weights[name])
        self._use_compiled(model)
        return model.train()

    def _use_compiled(self, model: Any) -> None:
        mode = self._lab.results.get("train", {}).get("mode")
        set_compiled(self._lab, model, self._settings.compiling and mode == "compiled")

    def _verify(self, model: Any) -> None:
        if self.spec is None:
            return
        set_compiled(self._lab, model.eval(), False)
        self.live = ropescale.verify(model).live
        self._use_compiled(model.train())

    def _starts(self) -> np.ndarray:
        """Returns windows of the stream with the fewest beginnings of files in them, shuffled; the same in all arms."""
        lab, length = self._lab, self._lab.sizes.target
        starts, files = np.arange(0, len(lab.corpus.stream) - length, length), lab.corpus.starts
        inside = np.searchsorted(files, starts + length) - np.searchsorted(files, starts + 1)
        best = np.argsort(inside, kind="stable")[: self._settings.tuning_steps * self._settings.tuning_rows]
        lab.say(
            f"{len(best)} windows of {length}; {int((inside == 0).sum())} of the stream's are in one file; "
            f"beginnings of files in those used: {inside[best].mean():.2f}"
        )
        return np.random.default_rng(self._settings.seed + 1).permutation(starts[best])

    def _rate(self, most: int) -> float:
        """Returns the rate of the next step: six steps up, then down to a tenth."""
        down = 0.9 * max(0, self.steps - 6) / max(1, most - 6)
        return self._settings.tuning_rate * min(1.0, (self.steps + 1) / 6) * (1 - down)

    def _that_fit(self, most: int, limit: float) -> int:
        """Returns how many steps the first arm may take, so that all arms of this call fit into its time."""
        (first, _, began), (last, _, now) = self.curve[0], self.curve[-1]
        a_step, arms = (now - began) / (last - first), max(1, self._arms)
        fit = max(10, int((limit - _RESERVE * arms) / arms / a_step))
        if fit < most:
            self._lab.say(f"{a_step:.2f} s a step: {most} steps for each of {arms} arms do not fit, {fit} do")
        return min(most, fit)


class Lessons:
    """Windows of the trained length that hide a number in code and ask for it."""

    def __init__(self, lab: Lab) -> None:
        self._lab, self._random = lab, np.random.default_rng(7)

    def _encode(self, text: str) -> list[int]:
        return self._lab.corpus.tokenizer.encode(text, add_special_tokens=False).ids

    def draw(self, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns ids, int64 [rows, positions], and which targets are answers, bool [rows, positions - 1]."""
        length, stream, dice = self._lab.sizes.trained, self._lab.corpus.stream, self._random
        question, ids, masks = self._encode(" The pass key is"), [], []
        for _ in range(rows):
            key = 3 * int(dice.integers(3334, 33333)) + int(dice.integers(1, 3))  # never a multiple of 3
            hidden, answer = self._encode(f" The pass key is {key}."), self._encode(f" {key}")
            room = length - len(hidden) - len(question) - len(answer)
            at, cut = int(dice.integers(len(stream) - room)), int(dice.integers(room + 1))
            filler = stream[at : at + room].tolist()
            ids.append([*filler[:cut], *hidden, *filler[cut:], *question, *answer])
            masks.append([False] * (length - 1 - len(answer)) + [True] * len(answer))
        return torch.tensor(ids, device=self._lab.device), torch.tensor(masks, device=self._lab.device)


def teach(lab: Lab) -> tuple[Any, list[list[float]]]:
    """Teaches the trained model to answer; returns it, and rows of step and loss per token of an answer."""
    lab.free("base", "tuned")
    settings, lessons, curve = lab.settings, Lessons(lab), []
    model = build(lab, torch.float32, lab.weights()).train()
    optimizer = optimizer_of(lab, model, decay=0.0)
    for step in range(settings.teaching_steps):
        ids, mask = lessons.draw(settings.teaching_rows)
        decay = 1 - step / settings.teaching_steps
        set_rate(optimizer, settings.tuning_rate * min(1.0, (step + 1) / 10) * decay)
        optimizer.zero_grad(set_to_none=True)
        for at in range(0, len(ids), 16):  # the answers, and a little of everything, so that the rest is kept
            part, marked = ids[at : at + 16], mask[at : at + 16]
            rest = loss_sum(lab, model, part) / (len(ids) * (lab.sizes.trained - 1))
            (loss_sum(lab, model, part, marked) / mask.sum() + 0.2 * rest).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 10 == 0 or step == settings.teaching_steps - 1:
            with torch.no_grad():
                answers = loss_sum(lab, model, ids[-16:], mask[-16:]) / mask[-16:].sum()
            curve.append([step, round(float(answers), 4)])
    lab.say("teaching (nats per token of an answer):", curve[:2], curve[-1])
    return build(lab, lab.dtype, weights_of(model)), curve
