"""Measures a model during training: perplexity against length, and the short-context cost of training.

Every measurement is a separate run for ``ropescale report``, in a folder such as ``step-000100``; :func:`stage` names
its model. The run in ``original`` measures the model with and without its schedule before the first step, as the
baseline of the short-context cost. All runs use the same tokens.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import torch

from ...checkpoints.saving import carries_ours
from ...configs.configuration import read_rope
from ...errors import ConfigError, RopescaleError
from ...models.patching import configuration_before
from ...models.rotary_modules import evaluating, preserved, unwrapped
from ...output.formatting import cut
from ...verifying.verification import in_memory
from ..data.chats import Given
from ..metrics import paired
from ..results.result import Result
from ..running.corpus import Corpus
from ..running.options import PerplexityOptions, Schedules
from ..running.perplexity import PerplexityRun
from ..running.runner import carry_out
from ..running.variants import AS_IS
from ..scoring.scorer import Scorer
from .proving import is_shared, plain, processes, settle_leader

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from ..scoring.scorer import State

Figures = dict[str, float]
"""The results of a measurement, by their names in Trainer's log."""

BASE, ORIGINAL = "base", "original"


class Measuring:
    """The measurements of a training run.

    Args:
        documents, lengths: as for :func:`ropescale.evals.perplexity`.
        options: its options.
        out: the folder of the runs.
        tokenizer: the tokenizer for text documents.
    """

    def __init__(
        self,
        documents: Iterable[Given] | Mapping[str, Iterable[Given]],
        lengths: int | str | Sequence[int | str],
        options: PerplexityOptions,
        out: Path,
        tokenizer: PreTrainedTokenizerBase | None,
    ) -> None:
        self.options, self.out = options, out
        self.corpus = Corpus(documents, lengths, tokenizer, "auto", options)
        self._reference: Result | None = None  # the baseline run of the short-context cost

    def begin(self, model: nn.Module, step: int) -> Figures:
        """Measures the model with and without its schedule before the first step; resumed training reads the results.

        Returns:
            The results of this step; none in resumed training.
        """
        if step:
            for name in ("step-000000", ORIGINAL):
                with suppress(RopescaleError):
                    self._reference = Result.load(self.out / name)
            self._reference = processes().from_leader(self._reference)
            return {}
        own = plain(model)
        if not carries_ours(own) or any(rope.is_scaled for rope in read_rope(configuration_before(own)).values()):
            return self.measure(model, step)  # the model without a schedule is unknown
        both = self._reference = self._measured(model, step, BASE)
        self._keep(both, ORIGINAL)
        return self._noted(_first_alone(both), step)

    def measure(self, model: nn.Module, step: int) -> Figures:
        """Measures the current model, saves the run, and returns its results in every process."""
        return self._noted(self._measured(model, step), step)

    def _noted(self, result: Result, step: int) -> Figures:
        """Saves a run; returns the perplexities, and the short-context cost against the model without the schedule."""
        self._keep(result, f"step-{step:06d}")
        if not step:
            self._reference = self._reference or result
        figures: Figures = {}
        if processes().world.leads:
            figures = {f"eval_ppl_{row.length}": row.ppl for row in result.rows if row.schedule == result.schedules[0]}
            before = self._reference
            short = before and paired.short_length(self.corpus.lengths, before.trained_length)
            if before and short:
                cost = paired.difference(result, result.schedules[0], before, before.baseline, short)
                figures |= {} if cost is None else {"eval_short_context_cost": cost.mean}
        return processes().from_leader(figures)

    def _measured(self, model: nn.Module, step: int, baseline: str | None = None) -> Result:
        """Evaluates the current model, and a baseline if given."""
        model = plain(model)
        schedules = Schedules(baseline=baseline, patching=self.options.patching)
        with undisturbed(model):
            run = PerplexityRun(unwrapped(model), self.corpus, schedules, self.options)
            if is_shared(model):
                run.scorer = SharedScorer(cast("PreTrainedModel", model), self.options.logits_bytes)
            result = carry_out(run, None, group=processes(model))
        names = {AS_IS: stage(model, step), BASE: UNSCALED}
        return replace(
            result,
            passes=[replace(each, schedule=names[each.schedule]) for each in result.passes],
            divergences=[
                replace(divergence, schedule=names[divergence.schedule], baseline=names[divergence.baseline])
                for divergence in result.divergences
            ],
            baseline=names[result.baseline],
        )

    def _keep(self, result: Result, name: str) -> None:
        settle_leader(lambda: result.save(self.out / name, force=True))


def _first_alone(result: Result) -> Result:
    """Returns the first schedule's part of a measurement, which only some processes have."""
    if not result.passes:
        return result
    first = result.schedules[0]
    passes = [each for each in result.passes if each.schedule == first]
    tables = {each.table_sha256: result.tables[each.table_sha256] for each in passes}
    return replace(result, passes=passes, divergences=[], baseline=first, tables=tables)


def refuse_unmeasurable(model: nn.Module) -> None:
    """Refuses a model whose weights cannot be gathered for a separate forward pass.

    Raises:
        ConfigError: it is wrapped by FSDP1, or sharded by ZeRO-3.
    """
    if is_shared(model) and not any(hasattr(each, "full_tensor") for each in model.parameters()):
        raise ConfigError(
            "this model's sharding prevents measuring during training; use FSDP2 (fsdp_version 2), or leave "
            "eval_documents out and measure the saved model",
            "eval_documents",
        )


UNSCALED = "no schedule, before"
"""The name of the model without a schedule, before the first step."""


def stage(model: nn.Module, step: int) -> str:
    """Returns the name of a model at a step: ``yarn:factor=8, before``, ``yarn:factor=8, after 200 steps``."""
    schedules = "; ".join(dict.fromkeys(in_memory(model, 1).schedules.values()))  # several schedules if layers differ
    return f"{cut(schedules, 40)}, " + (f"after {step:,} step{'s' * (step > 1)}" if step else "before")


# --- Measuring without side effects on training


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Restores the random states, the training mode and the rotary tables at the end of the block.

    Inside, the model is in evaluation mode, and computes in the dtype of its weights: accelerate's autocast around
    ``forward`` is disabled, so that the results equal those of ``ropescale eval`` on the saved weights.
    """
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()  # readers of the weights would keep those that a forward pass left gathered
    wrapped = [each for each in model.modules() if "_original_forward" in vars(each) and "forward" in vars(each)]
    kept = [vars(each).pop("forward") for each in wrapped]
    python, numpy = random.getstate(), np.random.get_state()
    devices = range(torch.cuda.device_count())
    try:
        with torch.random.fork_rng(devices, device_type="cuda"), preserved(model), evaluating(model):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        for each, forward in zip(wrapped, kept, strict=True):
            vars(each)["forward"] = forward


class SharedScorer(Scorer):
    """Scores windows with a model whose weights several processes share.

    All processes feed the same windows at the same time, through the outermost module, which gathers the weights. The
    head does not run separately, so the full logits of a window are in memory; a batch that does not fit is not
    retried, because the other processes would not know.

    Args:
        model: the outermost module.
    """

    def __init__(self, model: PreTrainedModel, logits_bytes: int) -> None:
        super().__init__(model, logits_bytes)
        self.model, self.split, self.retries = model, False, False

    def check(self, ids: torch.Tensor) -> None:
        """Does nothing, because the head does not run separately."""

    def score(self, ids: torch.Tensor, chunk: int | None = None) -> torch.Tensor:
        # Weights gathered in inference mode could not be used in a later backward pass.
        with torch.inference_mode(False), torch.no_grad():
            return super().score(ids)

    def states(self, ids: torch.Tensor, chunk: int | None = None) -> State:
        with torch.inference_mode(False), torch.no_grad():
            return super().states(ids)
