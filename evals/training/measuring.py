"""Measures a model while it is trained: perplexity against length, and what the training costs in short context.

Each measurement is a run of its own, in ``step-000100`` and the like, that ``ropescale report`` shows, under the name
that :func:`stage` gives it. The run in ``original`` has the model before its schedule beside the one with it, before
the first step: what the short-context cost is counted from. All are of the same tokens.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import torch

from ...checkpoints.metadata.record import read_record
from ...checkpoints.saving import carries_ours
from ...configs.configuration import read_rope
from ...errors import ConfigError, RopescaleError
from ...models.patching import configuration_before, installed
from ...models.rotary_modules import evaluating, preserved, unwrapped, whole_config
from ...output.formatting import cut
from ...verifying.verification import in_memory
from ..data.chats import Given
from ..metrics import paired
from ..metrics.perplexity import PerplexityRow
from ..results.result import Result
from ..running.perplexity import PerplexityRun
from ..running.runner import carry_out
from ..running.selection import Corpus, PerplexityOptions
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
        named: call what is measured by :func:`stage`; else it is "as-is", and "base" without its schedule.
    """

    def __init__(
        self,
        documents: Iterable[Given] | Mapping[str, Iterable[Given]],
        lengths: int | str | Sequence[int | str],
        options: PerplexityOptions,
        out: Path,
        tokenizer: PreTrainedTokenizerBase | None,
        named: bool = True,
    ) -> None:
        self.options, self.out, self.named = options, out, named
        self.corpus = Corpus(documents, lengths, tokenizer, "auto", options)
        self._reference: Result | None = None  # the run that the short-context cost is counted from

    def begin(self, model: nn.Module, step: int) -> Figures:
        """Measures the model before the first step, also without its schedule; of a training that is continued, reads
        what was measured then.

        Returns:
            The figures of this step; none for a training that is continued.
        """
        if step:
            self._reference = processes().from_leader(self._usable(self._read_reference()))
            return {}
        if not _had_none_before(model):
            return self.measure(model, step)
        both = self._measured(model, step, BASE)
        self._keep(both, ORIGINAL)
        self._reference = self._usable(both)
        return self._noted(_first_alone(both), step)

    def measure(self, model: nn.Module, step: int) -> Figures:
        """Measures the model as it is now, keeps the run, and returns its figures in every process."""
        return self._noted(self._measured(model, step), step)

    def _noted(self, result: Result, step: int) -> Figures:
        self._keep(result, f"step-{step:06d}")
        if self._reference is None and not step:
            self._reference = self._usable(result)
        return processes().from_leader(self._figures(result) if processes().world.leads else {})

    def _measured(self, model: nn.Module, step: int, baseline: str | None = None) -> Result:
        """Runs the evaluation of the model as it is, beside a baseline where one is given."""
        model = plain(model)
        names = {AS_IS: stage(model, step), BASE: UNSCALED} if self.named else {}
        with undisturbed(model):
            run = PerplexityRun(unwrapped(model), self.corpus, [], baseline, self.options)
            if is_shared(model):
                run.scorer = SharedScorer(cast("PreTrainedModel", model), self.options.logits_bytes)
            return renamed(carry_out(run, None, group=processes(model)), names)

    def _keep(self, result: Result, name: str) -> None:
        settle_leader(lambda: result.save(self.out / name, force=True))

    def _figures(self, result: Result) -> Figures:
        """Returns the perplexities, and how much worse the model is in short context than before the schedule."""
        figures = {f"eval_ppl_{row.length}": row.ppl for row in result.rows if row.schedule == result.schedules[0]}
        before = self._reference
        short = None if before is None else self._short(before)
        if before is not None and short is not None:
            cost = paired.difference(result, result.schedules[0], before, before.baseline, short)
            figures |= {} if cost is None else {"eval_short_context_cost": cost.mean}
        return figures

    def _short(self, result: Result) -> int | None:
        return paired.short_length(self.corpus.lengths, result.trained_length)

    def _usable(self, result: Result | None) -> Result | None:
        """Returns a reference with a length in short context; None for another, which need not be kept."""
        return None if result is None or self._short(result) is None else result

    def _read_reference(self) -> Result | None:
        """Returns what was measured before the first step of a training that is continued; None if it was not."""
        for name in (ORIGINAL, "step-000000"):
            with suppress(RopescaleError):
                return Result.load(self.out / name)
        return None


def renamed(result: Result, names: Mapping[str, str]) -> Result:
    """Returns a measurement whose schedules have other labels; those that are not named keep theirs."""

    def new(label: str) -> str:
        return names.get(label, label)

    made = replace(
        result,
        passes=[replace(each, schedule=new(each.schedule)) for each in result.passes],
        divergences=[
            replace(each, schedule=new(each.schedule), baseline=new(each.baseline)) for each in result.divergences
        ],
        baseline=new(result.baseline),
    )
    known = result.figures.get(PerplexityRow)  # of a run that was loaded: a part of them needs the texts
    if known is not None:
        made.figures[PerplexityRow] = [replace(row, schedule=new(row.schedule)) for row in known]
    return made


def _first_alone(result: Result) -> Result:
    """Returns the part of a measurement that is of its first schedule; not every process has any."""
    if not result.passes:
        return result
    first = result.schedules[0]
    passes = [each for each in result.passes if each.schedule == first]
    kept = {each.table_sha256 for each in passes}
    tables = {name: each for name, each in result.tables.items() if name in kept}
    return replace(result, passes=passes, divergences=[], baseline=first, tables=tables)


def _had_none_before(model: nn.Module) -> bool:
    """Whether the model carries a schedule, and was without any scaling before it."""
    found = plain(model)
    return carries_ours(found) and not any(rope.is_scaled for rope in read_rope(configuration_before(found)).values())


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


# --- names of what is measured: the schedule, and how far the model has been trained

UNSCALED = "no schedule, before"
"""The model before its schedule and before its first step."""

_FACTOR = re.compile(r"[:,]factor=([^,]+)")
_LONGEST = 40


def stage(model: nn.Module, step: int) -> str:
    """Returns the name of a model at a step: ``yarn x8, before``, ``yarn x8, after 200 steps``."""
    name = cut("; ".join(dict.fromkeys(map(_short, _texts(model)))), _LONGEST)  # several, where layers differ
    return f"{name}, {progress(step)}"


def progress(step: int) -> str:
    """Returns how far a model has been trained, in words."""
    return f"after {step:,} step{'s' * (step > 1)}" if step else "before"


def _texts(model: nn.Module) -> Iterable[str]:
    """Returns the schedules of a model: its patch's, its folder's, or its configuration's."""
    folder = Path(str(getattr(whole_config(model), "_name_or_path", "") or ""))
    record = read_record(folder) if installed(model) is None and folder.name and folder.is_dir() else None
    labels = {} if record is None else record.labels
    return (labels or in_memory(model, 1).schedules).values()


def _short(text: str) -> str:
    factor = _FACTOR.search(text)
    name = re.sub(r" of \d+$", "", text) if ":" not in text else text.partition(":")[0]
    return f"{name} x{factor[1]}" if factor else name


# --- the training goes on as if nothing had happened


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Restores afterwards the random states, the training mode and the rotary tables.

    Inside, the model is in evaluation mode, and computes in the dtype of its weights: the autocast that accelerate puts
    around ``forward`` is out, so that the figures are those of ``ropescale eval`` on the saved weights.
    """
    _reshard(model)
    with ExitStack() as stack:
        for context in (_same_random_states(), preserved(model), evaluating(model), _without_autocast(model)):
            stack.enter_context(context)
        yield


def _reshard(model: nn.Module) -> None:
    """Gives back the weights that FSDP2 left gathered after a forward pass: what reads them would hold on to them."""
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


@contextmanager
def _same_random_states() -> Iterator[None]:
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(range(torch.cuda.device_count()), device_type="cuda"):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


@contextmanager
def _without_autocast(model: nn.Module) -> Iterator[None]:
    """Takes out the ``forward`` that accelerate has put over a model's own; it keeps that as ``_original_forward``."""
    wrapped = [
        module for module in model.modules() if "_original_forward" in vars(module) and "forward" in vars(module)
    ]
    kept = [vars(module).pop("forward") for module in wrapped]
    try:
        yield
    finally:
        for module, forward in zip(wrapped, kept, strict=True):
            vars(module)["forward"] = forward


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
