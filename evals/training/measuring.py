"""Measures a model while it is trained: perplexity against length, and what the training costs in short context.

Each measurement is a run of its own, in ``step-000100`` and the like, that ``ropescale report`` shows, under the name
that :func:`stage` gives it. The run in ``original`` has the model before its schedule beside the one with it, before
the first step: what the short-context cost is counted from. All are of the same tokens.
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
    from collections.abc import Iterable

    from torch import nn
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from ..scoring.scorer import State

Figures = dict[str, float]
"""What a measurement found, by the names under which Trainer logs it."""

BASE, ORIGINAL = "base", "original"


class Measuring:
    """The measurements of one training.

    Args:
        documents, lengths: as for :func:`ropescale.evals.perplexity`.
        options: its options.
        out: the folder that the runs are kept in.
        tokenizer: encodes documents that are texts.
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
        self._reference: Result | None = None  # the run that the short-context cost is counted from

    def begin(self, model: nn.Module, step: int) -> Figures:
        """Measures the model before the first step, also without its schedule; of a training that is continued, reads
        what was measured then.

        Returns:
            The figures of this step; none for a training that is continued.
        """
        if step:
            for name in ("step-000000", ORIGINAL):
                with suppress(RopescaleError):
                    self._reference = Result.load(self.out / name)
            self._reference = processes().from_leader(self._reference)
            return {}
        own = plain(model)
        if not carries_ours(own) or any(rope.is_scaled for rope in read_rope(configuration_before(own)).values()):
            return self.measure(model, step)  # nothing is known to be the model without a schedule
        both = self._reference = self._measured(model, step, BASE)
        self._keep(both, ORIGINAL)
        return self._noted(_first_alone(both), step)

    def measure(self, model: nn.Module, step: int) -> Figures:
        """Measures the model as it is now, keeps the run, and returns its figures in every process."""
        return self._noted(self._measured(model, step), step)

    def _noted(self, result: Result, step: int) -> Figures:
        """Keeps a run, and returns the perplexities, and how much worse the model is in short context than before the
        schedule."""
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
        """Runs the evaluation of the model as it is, beside a baseline where one is given."""
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
                replace(each, schedule=names[each.schedule], baseline=names[each.baseline])
                for each in result.divergences
            ],
            baseline=names[result.baseline],
        )

    def _keep(self, result: Result, name: str) -> None:
        settle_leader(lambda: result.save(self.out / name, force=True))


def _first_alone(result: Result) -> Result:
    """Returns the part of a measurement that is of its first schedule; not every process has any."""
    if not result.passes:
        return result
    first = result.schedules[0]
    passes = [each for each in result.passes if each.schedule == first]
    tables = {each.table_sha256: result.tables[each.table_sha256] for each in passes}
    return replace(result, passes=passes, divergences=[], baseline=first, tables=tables)


def refuse_unmeasurable(model: nn.Module) -> None:
    """Refuses a model whose weights cannot be brought together for a forward pass on their own.

    Raises:
        ConfigError: it is wrapped by the first FSDP, or spread by ZeRO-3.
    """
    if is_shared(model) and not any(hasattr(each, "full_tensor") for each in model.parameters()):
        raise ConfigError(
            "this model is spread over processes in a way that cannot be measured while it trains; use FSDP2 "
            "(fsdp_version 2), or leave eval_documents out and measure what is saved",
            "eval_documents",
        )


UNSCALED = "no schedule, before"
"""The name of the model before its schedule and before its first step."""


def stage(model: nn.Module, step: int) -> str:
    """Returns the name of a model at a step: ``yarn:factor=8, before``, ``yarn:factor=8, after 200 steps``."""
    schedules = "; ".join(dict.fromkeys(in_memory(model, 1).schedules.values()))  # several, where layers differ
    return f"{cut(schedules, 40)}, " + (f"after {step:,} step{'s' * (step > 1)}" if step else "before")


# --- the training goes on as if nothing had happened


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Restores afterwards the random states, the training mode and the rotary tables.

    Inside, the model is in evaluation mode, and computes in the dtype of its weights: the autocast that accelerate puts
    around ``forward`` is out, so that the figures are those of ``ropescale eval`` on the saved weights.
    """
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()  # what reads the weights would hold on to those that a forward pass left gathered
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
    """Scores windows under a model whose weights several processes hold together.

    All of them feed the same windows at the same time, through the outermost module, which gathers the weights. The
    head does not run apart, so the logits of one window are held whole; and a batch that does not fit is not tried
    again, because the others would not know.

    Args:
        model: the outermost module.
    """

    def __init__(self, model: PreTrainedModel, logits_bytes: int) -> None:
        super().__init__(model, logits_bytes)
        self.model, self.split, self.retries = model, False, False

    def check(self, ids: torch.Tensor) -> None:
        """Nothing runs apart here, so there is nothing to compare."""

    def score(self, ids: torch.Tensor, chunk: int | None = None) -> torch.Tensor:
        # Weights that are gathered in inference mode could not take part in a backward pass later.
        with torch.inference_mode(False), torch.no_grad():
            return super().score(ids)

    def states(self, ids: torch.Tensor, chunk: int | None = None) -> State:
        with torch.inference_mode(False), torch.no_grad():
            return super().states(ids)
