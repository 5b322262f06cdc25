"""transformers' Trainer with a recipe's rate, and what it says while it trains."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerCallback, TrainingArguments

from ..running.progress import Notes, duration
from ..training.packing import Packed
from .job import TrainingJob

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import PreTrainedModel


def arguments(job: TrainingJob, folder: Path, accumulated: int, processes: int, on_cpu: bool) -> TrainingArguments:
    """Returns Trainer's arguments for a job.

    Args:
        folder: where checkpoints are written.
        accumulated: forward passes of a process that make a step.
    """
    recipe = job.recipe
    return TrainingArguments(
        output_dir=str(folder),
        max_steps=job.steps,
        per_device_train_batch_size=job.micro_batch,
        gradient_accumulation_steps=accumulated,
        learning_rate=recipe.learning_rate,
        adam_beta1=recipe.betas[0],
        adam_beta2=recipe.betas[1],
        weight_decay=recipe.weight_decay,
        max_grad_norm=recipe.gradient_norm,
        optim="adamw_torch",
        bf16=not on_cpu if job.bf16 is None else job.bf16,
        **(_checkpointing() if job.checkpointing else {}),
        save_steps=job.save_every,
        save_total_limit=2,
        logging_steps=max(1, job.steps // 20),
        seed=job.seed,
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_pin_memory=not on_cpu,
        ddp_find_unused_parameters=False,
        ddp_backend="gloo" if on_cpu and processes > 1 else None,
        use_cpu=on_cpu,
    )


def _checkpointing() -> dict[str, Any]:
    """Returns Trainer's arguments for computing activations again; they have new names since 5.23."""
    new = "activation_checkpointing" in TrainingArguments.__dataclass_fields__
    name = "activation_checkpointing" if new else "gradient_checkpointing"
    return {name: True, f"{name}_kwargs": {"use_reentrant": False}}


class RecipeTrainer(Trainer):
    """Trainer with a recipe's rate, and silent on stdout."""

    def __init__(
        self,
        model: PreTrainedModel,
        args: TrainingArguments,
        data: Packed,
        collator: Any,
        callbacks: list[TrainerCallback],
        job: TrainingJob,
    ) -> None:
        self.job = job
        super().__init__(model, args, train_dataset=data, data_collator=collator, callbacks=callbacks)
        for each in (PrinterCallback, ProgressCallback):
            self.remove_callback(each)

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None) -> LambdaLR:
        """Makes the recipe's rate: a linear warm-up, and then what it says."""
        recipe, steps = self.job.recipe, self.job.steps
        self.lr_scheduler = LambdaLR(cast(Any, optimizer or self.optimizer), lambda step: recipe.share(step, steps))
        self._created_lr_scheduler = True
        return self.lr_scheduler

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Warns of weights that a checkpoint lacks; not of those that are tied to others, which no file holds twice."""
        model: Any = self.model
        state = model.state_dict()
        lacking = set(load_result.missing_keys)
        there = {each.data_ptr() for name, each in state.items() if name not in lacking}
        tied = {name for name in lacking if name in state and state[name].data_ptr() in there}
        super()._issue_warnings_after_load(
            load_result._replace(missing_keys=[name for name in load_result.missing_keys if name not in tied])
        )


class Pace(TrainerCallback):
    """Says how a training goes: what Trainer logs, and how long it will be."""

    def __init__(self, steps: int, notes: Notes) -> None:
        self.steps, self.notes = steps, notes
        self._began: tuple[int, float] | None = None

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Counts from the end of the first step, which is slower than others; two steps later it says the time."""
        if self._began is None:
            self._began = state.global_step, time.monotonic()
        elif state.global_step == self._began[0] + 2 and state.global_step % args.logging_steps:
            self._tell(state, self._speed(state.global_step))

    def on_log(
        self, args: Any, state: Any, control: Any, logs: Mapping[str, float] | None = None, **kwargs: Any
    ) -> None:
        """Says the loss and the rate, or the figures of a measurement."""
        figures = {name: value for name, value in (logs or {}).items() if name.startswith(("eval_ppl", "eval_short"))}
        if figures:
            self._tell(state, *(f"{name.removeprefix('eval_')} {value:.4g}" for name, value in figures.items()))
        elif logs and "loss" in logs:
            loss = f"loss {logs['loss']:.4f}, rate {logs.get('learning_rate', 0.0):.2e}"
            self._tell(state, loss, self._speed(state.global_step))

    def _tell(self, state: Any, *said: str) -> None:
        if state.is_world_process_zero:
            self.notes.tell(f"step {state.global_step:,} of {self.steps:,}: {', '.join(filter(None, said))}")

    def _speed(self, step: int) -> str:
        if self._began is None or step <= self._began[0]:
            return ""
        seconds = (time.monotonic() - self._began[1]) / (step - self._began[0])
        return f"{seconds:.2f} s a step, {duration(seconds * (self.steps - step))} to go"
