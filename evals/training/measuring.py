"""Measures a model during training: perplexity against length, and the short-context cost of training.

Every measurement is a separate run for ``ropescale report``, in a folder such as ``step-000100``; :func:`stage` names
its model. The first one measures the model with and without its schedule, as the baseline of the short-context cost.
All runs use the same tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from ...checkpoints.saving import carries_ours
from ...configs.configuration import read_rope
from ...errors import ConfigError, RopescaleError
from ...models.patching import configuration_before
from ...models.rotary_modules import evaluating, preserved, unwrapped
from ...output.formatting import cut
from ...verifying.verification import in_memory
from ..backends.loaded import LoadedModel, Variant
from ..backends.schedules import Schedules
from ..data.sources import texts_of
from ..data.windows import Lengths, check_lengths
from ..metrics import paired
from ..results.result import Result
from ..running.corpus import Corpus, PerplexityOptions
from ..running.perplexity import PerplexityRun
from ..running.runner import carry_out
from ..scoring.scorer import Scorer
from .proving import is_shared, plain, processes, settle_leader

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from ..data.sources import TextsGiven
    from ..scoring.scorer import TrunkOutput

Figures = dict[str, float]
"""The results of a measurement, by their names in Trainer's log."""


class Measuring:
    """The measurements of a training run.

    Args:
        documents, lengths: as for :func:`ropescale.evals.perplexity`.
        options: the options of :func:`ropescale.evals.perplexity`.
        out: the folder of the runs.
        tokenizer: the tokenizer for text documents.
    """

    def __init__(
        self,
        documents: TextsGiven,
        lengths: Lengths,
        options: PerplexityOptions,
        out: Path,
        tokenizer: PreTrainedTokenizerBase | None,
    ) -> None:
        self.options = options
        self.out = out
        texts, source = texts_of(documents, options.max_docs)
        self.corpus = Corpus(texts, check_lengths(lengths), tokenizer, "auto", options, source)
        self.corpus.refuse_small_budget()
        self._reference: Result | None = None  # the baseline run of the short-context cost

    def begin(self, model: nn.Module, step: int) -> Figures:
        """Measures the model with and without its schedule before the first step, or reads this measurement in resumed
        training.

        Returns:
            The results of this step; empty in resumed training.
        """
        if step:
            with suppress(RopescaleError):
                self._reference = Result.load(self.out / _folder(0))
            self._reference = processes().from_leader(self._reference)
            return {}
        own = plain(model)
        is_known = carries_ours(own) and not any(
            rope.is_scaled for rope in read_rope(configuration_before(own)).values()
        )
        return self.measure(model, step, "base" if is_known else None)

    def measure(self, model: nn.Module, step: int, baseline: str | None = None) -> Figures:
        """Measures the current model, and ``baseline`` if given, and saves the run.

        Returns:
            The perplexities and the short-context cost against the first run's baseline, in every process.
        """
        own = plain(model)
        label = stage(own, step)
        with undisturbed(own):
            schedules = Schedules(baseline=baseline)
            block = self.options.logits_bytes
            scorer = SharedScorer(cast("PreTrainedModel", own), block) if is_shared(own) else None
            backend = LoadedModel(unwrapped(own), None, block, scorer, Variant(own, label=label))
            result = carry_out(PerplexityRun(backend, self.corpus, schedules), None, processes(own))
        settle_leader(lambda: result.save(self.out / _folder(step), force=True))
        before = self._reference = self._reference if step else result
        figures: Figures = {}
        if processes().world.leads:
            figures = {f"eval_ppl_{row.length}": row.ppl for row in result.rows if row.schedule == label}
            short = before and paired.short_length(self.corpus.lengths, before.trained_length)
            if before and short:
                cost = paired.difference(result, label, before, before.baseline, short)
                if cost is not None:
                    figures["eval_short_context_cost"] = cost.mean
        return processes().from_leader(figures)


def _folder(step: int) -> str:
    return f"step-{step:06d}"


def refuse_unmeasurable(model: nn.Module) -> None:
    """Checks that the model's weights can be gathered for a separate forward pass.

    Raises:
        ConfigError: the model is wrapped by FSDP1, or sharded by ZeRO-3.
    """
    if is_shared(model) and not any(hasattr(each, "full_tensor") for each in model.parameters()):
        raise ConfigError(
            "this model's sharding prevents measuring during training; use FSDP2 (fsdp_version 2), or leave "
            "eval_documents out and measure the saved model",
            "eval_documents",
        )


def stage(model: nn.Module, step: int) -> str:
    """Returns the name of a model at a step: ``yarn:factor=8, before`` or ``yarn:factor=8, after 200 steps``."""
    schedules = "; ".join(dict.fromkeys(in_memory(model, 1).schedules.values()))  # several schedules if layers differ
    return f"{cut(schedules, 40)}, " + (f"after {step:,} step{'s' * (step > 1)}" if step else "before")


# --- Measuring without side effects on training


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Restores the random state, the training mode and the rotary tables at the end of the block.

    Inside, the model is in evaluation mode, and computes in the dtype of its weights: accelerate's autocast around
    ``forward`` is disabled, so that the results equal those of ``ropescale eval`` on the saved weights.
    """
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()  # a forward pass may leave weights gathered, which readers of the weights would then keep
    kept = {}
    for module in model.modules():
        if "_original_forward" in vars(module) and "forward" in vars(module):
            kept[module] = vars(module).pop("forward")
    devices = range(torch.cuda.device_count())
    try:
        with torch.random.fork_rng(devices, device_type="cuda"), preserved(model), evaluating(model):
            yield
    finally:
        for module, forward in kept.items():
            vars(module)["forward"] = forward


class SharedScorer(Scorer):
    """A scorer of windows with a model whose weights several processes share.

    All processes feed the same windows at the same time, and everything runs through the outermost module, which
    gathers the weights: the trunk with the logits of the last position alone, and the head in blocks. A batch that does
    not fit is not retried, because the other processes would not retry it.

    Args:
        model: the outermost module.
    """

    def __init__(self, model: PreTrainedModel, logits_bytes: int | None) -> None:
        super().__init__(model, logits_bytes)
        self.split = self.split and "logits_to_keep" in signature(self.model.forward).parameters
        self.model = model
        self.retries = False
        self.tiled = []
        self.unmasked = False

    def chunks_agree(self, ids: torch.Tensor) -> bool:
        """Returns False, because windows are fed whole."""
        return False

    def _run_trunk(self, ids: torch.Tensor, **cache: object) -> TrunkOutput:
        found: list[Any] = []
        with self.trunk.register_forward_hook(lambda module, args, output: found.append(output)):
            self.model(input_ids=ids, use_cache=False, logits_to_keep=1)
        return found[0]
