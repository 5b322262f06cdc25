"""``ropescale.TrainingCallback``: verifies the schedule in every process, measures during training, and saves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedTokenizerBase, TrainerCallback, TrainerState, TrainingArguments

from ...checkpoints.saving import carries_ours, complete
from ...errors import DataError
from ...models.patching import Patch, patch
from ..data.windows import Lengths
from ..progress import Notes
from ..running.corpus import PerplexityOptions
from .measuring import Figures, Measuring, refuse_unmeasurable
from .proving import check_finite, check_tables, plain, prove, settle, settle_leader

if TYPE_CHECKING:
    from ..data.sources import TextsGiven

FOLDER = "measured"
"""The subfolder of Trainer's output folder for the measurements."""


class TrainingCallback(TrainerCallback):
    """A callback that verifies that a schedule is live in every process, from the first step to the saved file.

    ``Trainer(model, args, callbacks=[ropescale.TrainingCallback("yarn:factor=8")])``, and the same for trainers built
    on it, such as TRL's. Training is unchanged: the weights after each step are bitwise identical to those without the
    callback. If the trained model is saved over a patched folder, patch with ``--link copy``: the folder shares the
    weights with its source otherwise.

    * Before the first step it verifies, in every process, that the schedule is live in every layer. If it is not live
      in one process, all processes stop with one line that names the rank, the module and the difference. The tables
      are compared again every ``check_every`` steps, at every evaluation, before every save and at the end.
    * Before every save, and at the end, it checks the last loss and the trained weights; if one is not finite, all
      processes stop, and nothing is saved. (Trainer omits such losses from its log.)
    * With ``eval_documents`` it measures perplexity against length as :func:`ropescale.evals.perplexity` does: before
      the first step, whenever Trainer evaluates, every ``every`` steps, and after the last step. The results
      (``eval_ppl_2048``, and ``eval_short_context_cost`` in nats at the largest length up to the trained one, against
      the model before its schedule and its training) are in Trainer's ``log_history`` and, when Trainer evaluates, in
      its metrics. Each measurement is a folder below ``out`` that ``ropescale report`` shows.
    * It adds the files of :func:`ropescale.save` to every checkpoint, including those of adapters. Trainer resumes
      from these checkpoints as before.

    Args:
        schedule: the schedule to patch the model with when the Trainer is created, unless ropescale already applied
            one, with further options of :func:`ropescale.patch`. Default: the schedule that the model already has, from
            a patch, the folder that it was loaded from, or its configuration.
        eval_documents: the documents to measure on, as for :func:`ropescale.evals.perplexity`.
        lengths: context lengths in positions, including BOS, such as ``"256,2k"``.
        tokenizer: the tokenizer for text documents. Default: Trainer's ``processing_class``.
        every: the number of steps between additional measurements.
        check_every: the number of steps between additional comparisons of the tables; None compares them only at saves,
            at evaluations and at the end.
        out: the folder of the measurements. Default: ``measured`` in Trainer's ``output_dir``.
        save: whether to add the files of :func:`ropescale.save` to every checkpoint.
        log: a function that receives the results, for TensorBoard and similar loggers: ``callback.log = trainer.log``.
        stride, windows, budget_tokens, max_docs, score: as for :func:`ropescale.evals.perplexity`.
        short_context, batch_tokens, progress: as for :func:`ropescale.evals.perplexity`.

    Raises:
        DataError: documents are given without lengths, lengths without documents, or an option has no effect.
    """

    def __init__(
        self,
        schedule: object = None,
        eval_documents: TextsGiven | None = None,
        lengths: Lengths | None = None,
        *,
        tokenizer: PreTrainedTokenizerBase | None = None,
        every: int | None = None,
        check_every: int | None = 50,
        out: str | Path | None = None,
        save: bool = True,
        log: Callable[[Figures], object] | None = None,
        stride: int | None = None,
        windows: int | str | None = None,
        budget_tokens: int | None = None,
        max_docs: int | None = None,
        score: str = "all",
        short_context: bool = True,
        batch_tokens: int | None = None,
        progress: bool = False,
    ) -> None:
        measuring: dict[str, Any] = {
            "stride": stride,
            "windows": windows,
            "budget_tokens": budget_tokens,
            "max_docs": max_docs,
            "score": score,
            "short_context": short_context,
            "batch_tokens": batch_tokens,
        }
        _refuse_useless(eval_documents, lengths, every, check_every, {**measuring, "progress": progress})
        # A model in training no longer uses the tables that truncation needs.
        self.options = PerplexityOptions(truncation=False, notes=Notes(progress), **measuring)
        self.schedule = schedule
        self.eval_documents = eval_documents
        self.lengths = lengths
        self.tokenizer = tokenizer
        self.out = out
        self.save = save
        self.log = log
        self.every = every
        self.check_every = check_every
        self.patch: Patch | None = None
        self.measuring: Measuring | None = None
        self.measured: dict[int, Figures] = {}
        self._loss: torch.Tensor | None = None  # of the last training step, if the model computes it
        self._hook: RemovableHandle | None = None

    # --- Trainer's events, whose first parameters have the types of TrainerCallback ---

    def on_init_end(self, args, state, control, *, model: nn.Module, **_: object) -> None:
        """Patches the model before it is wrapped or compiled, unless ropescale already applied a schedule."""
        own = plain(model)
        if self.schedule is not None and not carries_ours(own):
            self.patch = patch(own, self.schedule)

    def on_train_begin(self, args, state, control, *, model: nn.Module, **rest: object) -> None:
        """Verifies the schedule, and measures the model before the first step."""
        self.on_init_end(args, state, control, model=model)  # Trainer may have created the model only now
        prove(plain(model), self.schedule, self.save)
        self._unwatch()
        self._loss = None
        self._hook = plain(model).register_forward_hook(self._keep_loss)
        self._begin(args, state, model, rest)

    def on_step_end(self, args, state, control, *, model: nn.Module, **_: object) -> None:
        """Checks the model every ``check_every`` steps and before a save. Measures it every ``every`` steps, unless
        Trainer evaluates at this step."""
        if control.should_save or (self.check_every and state.global_step % self.check_every == 0):
            self.check(model, numbers=control.should_save)
        if self.every and state.global_step % self.every == 0 and not control.should_evaluate:
            self._measure(state, model)

    def on_epoch_end(self, args, state, control, *, model: nn.Module, **_: object) -> None:
        """Checks the model before a save at the end of an epoch."""
        if control.should_save:
            self.check(model, numbers=True)

    def on_evaluate(self, args, state, control, *, model: nn.Module, **rest: object) -> None:
        """Checks and measures the model, and adds the results to Trainer's metrics."""
        self.check(model, numbers=state.global_step > 0)  # Trainer decides later whether to save this step
        if self.measuring is None:
            self._begin(args, state, model, rest)
        self._measure(state, model)
        metrics = rest.get("metrics")
        if isinstance(metrics, dict):
            metrics.update(self.measured.get(state.global_step, {}))

    def on_save(self, args, state, control, *, model: nn.Module, **rest: object) -> None:
        """Adds ropescale's files to the checkpoint that Trainer just wrote, unless Trainer wrote it to another folder,
        as in a hyperparameter search."""
        own = plain(model)
        folder = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"
        self.check(own)
        if self.save and carries_ours(own):
            tokenizer = _tokenizer_in(rest)
            settle_leader(lambda: complete(own, folder, tokenizer) if folder.is_dir() else None)

    def on_train_end(self, args, state, control, *, model: nn.Module, **_: object) -> None:
        """Checks and measures the model after the last step."""
        self.check(model, numbers=True)
        self._unwatch()
        self._measure(state, model)

    # --- Checking ---

    def check(self, model: nn.Module, *, numbers: bool = False) -> None:
        """Verifies that the tables are live in every process and, if ``numbers``, that the last loss and the weights
        are finite."""
        own = plain(model)
        settle(lambda: check_tables(own))
        if numbers:
            settle(lambda: check_finite(own, self._loss))

    def _keep_loss(self, module: nn.Module, _: object, output: object) -> None:
        """Records the loss of the last pass in training mode."""
        if module.training:
            first = output[0] if isinstance(output, tuple) and output else None
            loss = output.get("loss") if isinstance(output, Mapping) else first
            self._loss = loss.detach() if isinstance(loss, torch.Tensor) and loss.numel() == 1 else None

    def _unwatch(self) -> None:
        if self._hook is not None:
            self._hook.remove()

    # --- Measuring ---

    def _begin(
        self, args: TrainingArguments, state: TrainerState, model: nn.Module, rest: Mapping[str, object]
    ) -> None:
        if self.eval_documents is None or self.lengths is None:
            return
        refuse_unmeasurable(model)
        out = Path(str(args.output_dir)) / FOLDER if self.out is None else Path(self.out).expanduser()
        tokenizer = self.tokenizer or _tokenizer_in(rest)
        notes = Notes(self.options.notes.shown and state.is_world_process_zero)
        options = replace(self.options, notes=notes)
        self.measuring = Measuring(self.eval_documents, self.lengths, options, out, tokenizer)
        self._note(state, self.measuring.begin(model, state.global_step))

    def _measure(self, state: TrainerState, model: nn.Module) -> None:
        if self.measuring is not None and state.global_step not in self.measured:
            self._note(state, self.measuring.measure(model, state.global_step))

    def _note(self, state: TrainerState, figures: Figures) -> None:
        """Stores a step's results, and adds them to Trainer's log history."""
        if not figures:
            return
        self.measured[state.global_step] = figures
        if self.log is not None:
            self.log(dict(figures))
            return
        state.log_history.append({**figures, "epoch": state.epoch or 0.0, "step": state.global_step})
        if state.is_world_process_zero:
            values = ", ".join(f"{name.removeprefix('eval_')} {value:.4g}" for name, value in figures.items())
            self.options.notes.tell(f"step {state.global_step:,}: {values}")


def _tokenizer_in(rest: Mapping[str, object]) -> PreTrainedTokenizerBase | None:
    processing = rest.get("processing_class")
    return processing if isinstance(processing, PreTrainedTokenizerBase) else None


def _refuse_useless(
    documents: object, lengths: object, every: int | None, check_every: int | None, measuring: Mapping[str, object]
) -> None:
    """Raises an error if an option has no effect, or a number of steps is invalid."""
    if (documents is None) != (lengths is None):
        raise DataError(
            "eval_documents and lengths need each other; give both, or neither", "eval_documents", "lengths"
        )
    given = [name for name, value in measuring.items() if value != getattr(PerplexityOptions, name, False)]
    if every is not None:
        given.append("every")
    if documents is None and given:
        name = given[0]
        raise DataError(f"{name} needs eval_documents to measure on; give both, or neither", name)
    for name, steps in {"every": every, "check_every": check_every}.items():
        if steps is not None and steps < 1:
            raise DataError(f"{name} {steps} is not a valid number of steps; give 1 or more", name)
