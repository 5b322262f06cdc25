"""What the looks of ``ropescale.TrainingCallback`` cost beside the steps of the same training: docs/training.md.

``python training_checks.py`` takes a minute. Every step is timed, and after each of them one look at
the tables and one at the loss and the weights, so that both bear the same load.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from transformers import AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments, default_data_collator

import ropescale
from ropescale.evals.reference import CHECKPOINT

LENGTH, STEPS, EVERY = 256, 40, 50


class Timing(TrainerCallback):
    """Times the steps, and the looks of a callback after each."""

    def __init__(self, callback: ropescale.TrainingCallback) -> None:
        self.callback, self.begun = callback, 0.0
        self.steps: list[float] = []
        self.tables: list[float] = []
        self.numbers: list[float] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.begun = time.process_time()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        ends = [time.process_time()]
        for numbers in (False, True):
            self.callback.check(kwargs["model"], numbers=numbers)
            ends.append(time.process_time())
        self.steps.append(ends[0] - self.begun)
        self.tables.append(ends[1] - ends[0])
        self.numbers.append(ends[2] - ends[1])


def main() -> None:
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32)
    rows = torch.randint(model.config.vocab_size, (STEPS, LENGTH), generator=torch.Generator().manual_seed(0))
    callback = ropescale.TrainingCallback("yarn:factor=4", check_every=None)
    timing = Timing(callback)
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(
            out, max_steps=STEPS, per_device_train_batch_size=1, save_strategy="no", report_to=[], use_cpu=True
        )
        data = [{"input_ids": row, "labels": row} for row in rows]
        callbacks = [callback, timing]
        Trainer(model, args, train_dataset=data, data_collator=default_data_collator, callbacks=callbacks).train()
    step, tables, numbers = (median(each[2:]) for each in (timing.steps, timing.tables, timing.numbers))
    print(f"{Path(CHECKPOINT).name}, one window of {LENGTH} a step, {STEPS} steps, CPU time")
    print(f"a look at the tables: {tables / step:.4f} of a step; every {EVERY} steps: {tables / step / EVERY:.3%}")
    print(f"a look at tables, loss and weights, before a save: {numbers / step:.4f} of a step")


if __name__ == "__main__":
    main()
