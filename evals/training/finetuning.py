"""The short adaptation after a schedule is put in: on transformers' Trainer, with :class:`TrainingCallback`."""

from __future__ import annotations

import dataclasses
import os
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerCallback, TrainingArguments

from ...checkpoints.completing import carries_ours
from ...checkpoints.folders import check_target
from ...checkpoints.locating import read_config
from ...checkpoints.record import original_config, read_record
from ...checkpoints.saving import save
from ...errors import CheckpointError, DataError, ScheduleError
from ...files.reading import local_path
from ...models.patching import patch
from ...models.rotary_modules import quiet_transformers
from ...planning.plan import make_plan
from ..data.chats import Unread
from ..data.documents import bos_id
from ..parallel.processes import World
from ..running import fingerprints
from ..running.preparing import Checkpoint
from ..running.progress import Notes, duration
from .agreeing import processes, settle_leader
from .callback import TrainingCallback
from .job import TrainingJob
from .lora import with_lora
from .losses import chunked_loss
from .outcome import Outcome
from .packing import Packed, packed
from .workspace import Workspace

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from ...request import Request


@dataclass(frozen=True)
class Adaptation:
    """A model, a schedule, texts and a job; :meth:`run` trains, or continues a training that was stopped.

    Args:
        checkpoint: the model.
        request: the schedule; ``as-is`` for a model that carries one.
        job: how it is trained.
        texts, eval_texts: to train on, and to measure on.
        out: the folder of the result.
        here: this process among those of the training.
        notes: tells how it goes.
    """

    checkpoint: Checkpoint
    request: Request
    job: TrainingJob
    texts: Iterable[Unread]
    eval_texts: Iterable[Unread] | None
    out: str | Path
    here: World = field(default_factory=World)
    notes: Notes = field(default_factory=Notes)

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The checkpoint's."""
        return self.checkpoint.tokenizer()

    @cached_property
    def length(self) -> int:
        """The positions of a window: those that are asked for, or those that the schedule is for.

        Raises:
            ScheduleError: the schedule does not fit, or the model is to stay as it is and carries none.
        """
        folder = self.checkpoint.folder
        config, record = read_config(folder), read_record(folder)
        plan = make_plan(original_config(config, folder), self.request)
        if not plan.changes and record is None:
            raise ScheduleError(
                f"{self.checkpoint.name} carries no schedule that ropescale put there, and none is given; name one, "
                "such as schedule='yarn:factor=8'",
                "schedule",
            )
        if plan.unsavable:
            raise ScheduleError(f"the result could not be saved: {plan.unsavable}", "freeze_at")
        meant = record.length if record is not None and not plan.changes else plan.length
        return meant if self.job.length is None else self.job.length

    def run(self, fresh: bool = False) -> Outcome:
        """Trains, and writes the result.

        Raises:
            RopescaleError: something that cannot be read, trained or written.
        """
        self._check()
        target = local_path(self.out)
        if os.path.lexists(target):
            raise CheckpointError(f"{target} exists already; choose another folder, or remove it yourself")
        target = check_target(self.checkpoint.folder, target)
        space, accumulated = Workspace(target), self.job.accumulated(self.here.size)
        space.refuse_foreign()
        data = packed(self.texts, self.tokenizer, self.length)
        self._announce(data)
        with ExitStack() as stack:
            if self.here.leads:
                stack.enter_context(space.held())
                space.begin(self._settings(data), fresh)
                stack.enter_context(self._telling(space))
            return self._trained(space, data, accumulated)

    @contextmanager
    def _telling(self, space: Workspace) -> Iterator[None]:
        """Says what is kept of a training that was stopped."""
        try:
            yield
        except BaseException:
            if space.reached:
                self.notes.tell(
                    f"the training stopped; what it had after {space.reached:,} steps is kept in {space.folder}, and "
                    "the same command continues there"
                )
            raise

    def _check(self) -> None:
        if self.checkpoint.adapter is not None:
            raise DataError(f"{self.checkpoint.name} is an adapter; give its base, or merge it first")
        shared = [name for name in ("FSDP", "DEEPSPEED") if os.environ.get(f"ACCELERATE_USE_{name}", "") == "true"]
        if shared:
            raise DataError(
                f"each process holds the whole model here, and accelerate is set to {shared[0]}; launch it without, or "
                "use ropescale.TrainingCallback in a script of your own"
            )
        device = self.checkpoint.device
        if device not in (None, "cpu", "cuda"):
            raise DataError(
                f"device={device!r} cannot be chosen for a training; leave it out, and set CUDA_VISIBLE_DEVICES",
                "device",
            )

    def _trained(self, space: Workspace, data: Packed, accumulated: int) -> Outcome:
        arguments = self._arguments(space, accumulated)  # which joins the processes
        model = self._model()
        last = processes().from_leader(space.last(self.job.steps) if self.here.leads else None)
        callback = self._callback(space, model)
        pace = Pace(self.job.steps, self.notes)
        with chunked_loss(model), quiet_transformers("transformers.trainer_utils"), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # between PEFT and transformers
            trainer = _Trainer(model, arguments, data, self._collator(), [callback, pace], self.job)
            callback.log = lambda figures: trainer.log(dict(figures))
            if last is not None:
                self.notes.tell(f"continuing from {last}")
            trainer.train(resume_from_checkpoint=None if last is None else str(last))
        settle_leader(lambda: self._finish(space, trainer.model))
        return Outcome.read(space, self.job.steps, self.job.steps * self.job.recipe.batch * self._trained_positions)

    def _finish(self, space: Workspace, model: Any) -> None:
        save(model, space.target)
        space.clear()

    def _model(self) -> PreTrainedModel:
        torch.manual_seed(self.job.seed)
        loaded = dataclasses.replace(self.checkpoint, dtype=self.checkpoint.dtype or "float32", device="cpu")
        model = loaded.model(World())
        model.train()
        options = {each.name: getattr(self.request, each.name) for each in dataclasses.fields(self.request)}
        schedule = options.pop("spec")
        if make_plan(
            original_config(read_config(self.checkpoint.folder), self.checkpoint.folder), self.request
        ).changes:
            patch(model, schedule, **options)
        if not carries_ours(model):
            raise ScheduleError("the model carries no schedule", "schedule")
        return with_lora(model, self.job.rank) if self.job.lora else model

    def _collator(self) -> Any:
        return self.job.collator(self.length, bos_id("auto", self.tokenizer))

    def _callback(self, space: Workspace, model: PreTrainedModel) -> TrainingCallback:
        job = self.job
        if not job.eval_lengths or self.eval_texts is None:
            return TrainingCallback()
        return TrainingCallback(
            None,
            cast(Any, self.eval_texts),
            list(job.eval_lengths),
            tokenizer=self.tokenizer,
            every=job.eval_every or job.steps,
            out=space.measured,
            windows=job.eval_windows,
        )

    @property
    def _trained_positions(self) -> int:
        """The positions of a window as it is fed."""
        return self.length if self.job.pose is None else self.job.pose

    def _settings(self, data: Packed) -> dict[str, object]:
        folder = self.checkpoint.folder
        request = {each.name: str(getattr(self.request, each.name)) for each in dataclasses.fields(self.request)}
        names = ("steps", "lora", "rank", "micro_batch", "mixed", "pose", "bf16", "checkpointing", "seed")
        return {
            "model": str(folder.resolve()),
            "weights": fingerprints.files_fingerprint(folder),
            **request,
            **{name: getattr(self.job, name) for name in names},
            **dataclasses.asdict(self.job.recipe),
            "length": self.length,
            "data": data.sha256,
            "dtype": self.checkpoint.dtype or "float32",
            "processes": self.here.size,
            **fingerprints.versions(),
        }

    def _announce(self, data: Packed) -> None:
        job, fed = self.job, self.job.steps * self.job.recipe.batch
        self.notes.tell(
            f"{job.steps:,} steps of {job.recipe.batch:,} windows of {self._trained_positions:,} tokens: "
            f"{fed * self._trained_positions:,} tokens; the text has {len(data):,} windows, so each is seen "
            f"{fed / len(data):,.2f} times"
        )

    def _arguments(self, space: Workspace, accumulated: int) -> TrainingArguments:
        job, recipe = self.job, self.job.recipe
        on_cpu = self.checkpoint.device == "cpu" or not torch.cuda.is_available()
        return TrainingArguments(
            output_dir=str(space.folder),
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
            ddp_backend="gloo" if on_cpu and self.here.size > 1 else None,
            use_cpu=on_cpu,
        )


def _checkpointing() -> dict[str, Any]:
    """Returns Trainer's arguments for computing activations again; they have new names since 5.23."""
    new = "activation_checkpointing" in TrainingArguments.__dataclass_fields__
    name = "activation_checkpointing" if new else "gradient_checkpointing"
    return {name: True, f"{name}_kwargs": {"use_reentrant": False}}


class _Trainer(Trainer):
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
