"""The short adaptation after a schedule is put in: on transformers' Trainer, with :class:`TrainingCallback`."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from ...checkpoints.saving import carries_ours, save
from ...errors import ScheduleError
from ...models.patching import patch
from ...models.rotary_modules import quiet_transformers
from ..data.chats import Unread
from ..data.documents import bos_id
from ..parallel.processes import World
from ..resuming import fingerprints
from ..running.preparing import Checkpoint
from ..running.progress import Notes
from ..running.selection import Corpus, PerplexityOptions
from ..training.agreeing import processes, settle_leader
from ..training.callback import TrainingCallback
from ..training.losses import chunked_loss
from ..training.packing import Packed, packed
from .job import RANK, TrainingJob
from .lora import with_lora
from .outcome import SEEN, Outcome, not_held_out
from .overlap import seen_share
from .preflight import Preflight
from .trainer import Pace, RecipeTrainer, arguments
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
        named: the schedule of each measured run is called by its step, such as ``yarn x8, after 200 steps``; else
            ``as-is`` in all of them.
    """

    checkpoint: Checkpoint
    request: Request
    job: TrainingJob
    texts: Iterable[Unread]
    eval_texts: Iterable[Unread] | None
    out: str | Path
    here: World = field(default_factory=World)
    notes: Notes = field(default_factory=Notes)
    named: bool = False

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The checkpoint's."""
        return self.checkpoint.tokenizer()

    @cached_property
    def preflight(self) -> Preflight:
        """Returns the checks that need nothing large to be read."""
        at, found = self.checkpoint, (self.checkpoint.folder, self.checkpoint.adapter is not None)
        return Preflight(at.name, *found, self.request, self.job, self.out, at.device)

    @property
    def length(self) -> int:
        """The positions of a window: those that are asked for, or those that the schedule is for.

        Raises:
            ScheduleError: the schedule does not fit, or the model is to stay as it is and carries none.
        """
        return self.preflight.length

    @cached_property
    def tested(self) -> list[Unread]:
        """The texts to measure on; none where nothing is measured."""
        return list(self.eval_texts or ()) if self.job.eval_lengths else []

    def run(self, fresh: bool = False) -> Outcome:
        """Trains, and writes the result.

        Raises:
            RopescaleError: something that cannot be read, trained or written.
        """
        self.preflight.check(self.here.size)
        space, accumulated = self.preflight.space, self.job.accumulated(self.here.size)
        data = packed(self.texts, self.tokenizer, self.length)
        self._announce(data)
        seen = self._seen(data)
        with ExitStack() as stack:
            if self.here.leads:
                stack.enter_context(space.held())
                space.begin(self._settings(data), fresh)
                stack.enter_context(self._telling(space))
            self._trained(space, data, accumulated)
        tokens = self.job.steps * self.job.recipe.batch * self._trained_positions
        return Outcome.read(space, self.job.steps, tokens, seen)

    def _seen(self, data: Packed) -> float:
        """Returns the share of the measured text that is trained on, and warns of it.

        Raises:
            DataError: a text to measure on is too short, or cannot be read.
        """
        if not self.tested:
            return 0.0
        options = PerplexityOptions(windows=self.job.eval_windows)
        corpus = Corpus(self.tested, list(self.job.eval_lengths), self.tokenizer, "auto", options)
        special = {bos_id("auto", self.tokenizer), getattr(self.tokenizer, "eos_token_id", None)}
        fed = (each.ids[: corpus.lengths[-1] - corpus.has_bos] for each in corpus.documents)
        seen = seen_share(fed, data.windows.reshape(-1), special)
        if seen >= SEEN:
            self.notes.warn(f"warning: {not_held_out(seen)}; give other texts as eval_data=TEXTS")
        return seen

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

    def _trained(self, space: Workspace, data: Packed, accumulated: int) -> None:
        on_cpu = self.checkpoint.device == "cpu" or not torch.cuda.is_available()
        asked = arguments(self.job, space.folder, accumulated, self.here.size, on_cpu)  # which joins the processes
        model = self._model()
        last = processes().from_leader(space.last(self.job.steps) if self.here.leads else None)
        callback = self._callback(space, model)
        pace = Pace(self.job.steps, self.notes)
        with chunked_loss(model), quiet_transformers("transformers.trainer_utils"), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # between PEFT and transformers
            collator = self.job.collator(self.length, bos_id("auto", self.tokenizer))
            trainer = RecipeTrainer(model, asked, data, collator, [callback, pace], self.job)
            callback.log = lambda figures: trainer.log(dict(figures))
            if last is not None:
                self.notes.tell(f"continuing from {last}")
            with space.writing():
                trainer.train(resume_from_checkpoint=None if last is None else str(last))
        settle_leader(lambda: self._finish(space, trainer.model))

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
        if self.preflight.plan.changes:
            patch(model, schedule, **options)
        if not carries_ours(model):
            raise ScheduleError("the model carries no schedule", "schedule")
        return with_lora(model, self.job.rank or RANK) if self.job.lora else model

    def _callback(self, space: Workspace, model: PreTrainedModel) -> TrainingCallback:
        job = self.job
        if not self.tested:
            return TrainingCallback()
        made = TrainingCallback(
            None,
            cast(Any, self.tested),
            list(job.eval_lengths),
            tokenizer=self.tokenizer,
            every=job.eval_every or job.steps,
            out=space.measured,
            windows=job.eval_windows,
        )
        made.named = self.named
        return made

    @property
    def _trained_positions(self) -> int:
        """The positions of a window as it is fed."""
        return self.length if self.job.pose is None else self.job.pose

    def _settings(self, data: Packed) -> dict[str, object]:
        folder = self.checkpoint.folder
        request = {each.name: str(getattr(self.request, each.name)) for each in dataclasses.fields(self.request)}
        names = ("steps", "lora", "micro_batch", "mixed", "pose", "bf16", "checkpointing", "seed")
        return {
            "model": str(folder.resolve()),
            "weights": fingerprints.files_fingerprint(folder),
            **request,
            **{name: getattr(self.job, name) for name in names},
            "rank": self.job.rank or RANK,
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
        for remark in self.preflight.remarks():
            self.notes.warn(f"warning: {remark}")
