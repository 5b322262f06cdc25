"""Measures a model while it is trained: perplexity against length, and what the training costs in short context.

Each measurement is a run of its own, in ``step-000100`` and the like, that ``ropescale report`` shows. The run in
``original`` is of the model before its schedule and before its first step, at the largest length up to the trained one:
what the short-context cost is counted from. All are of the same tokens.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from ...checkpoints.completing import carries_ours
from ...configs.configuration import read_rope
from ...errors import ConfigError, RopescaleError
from ...models.patching import configuration_before
from ...models.rotary_modules import unwrapped
from ..data.chats import Given
from ..metrics import paired
from ..results.result import Result
from ..results.stored import ShareFacts
from ..running.perplexity import PerplexityRun
from ..running.runner import carry_out
from ..running.selection import Corpus, PerplexityOptions
from ..running.variants import AS_IS, trained_length
from .agreeing import is_shared, processes, settle_leader
from .proving import plain
from .undisturbed import SharedScorer, undisturbed

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Figures = dict[str, float]
"""What a measurement found, by the names under which Trainer logs it."""

BASE, ORIGINAL = "base", "original"


@dataclass(frozen=True)
class Reference:
    """What the short-context cost is counted from: a run, the label of its schedule, and the length."""

    result: Result
    label: str
    length: int


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
        self._reference: Reference | None = None

    def begin(self, model: nn.Module, step: int) -> Figures:
        """Measures the model before the first step, also without its schedule; of a training that is continued, reads
        what was measured then.

        Returns:
            The figures of this step; none for a training that is continued.
        """
        if step:
            self._reference = processes().from_leader(self._read_reference())
            return {}
        short = paired.short_length(self.corpus.lengths, trained_length(plain(model)))
        if short is not None and _had_none_before(model):
            result = self._measured(model, ORIGINAL, BASE, self._shortened(short))
            self._reference = Reference(result, BASE, short)
        return self.measure(model, step)

    def measure(self, model: nn.Module, step: int) -> Figures:
        """Measures the model as it is now, keeps the run, and returns its figures in every process."""
        result = self._measured(model, f"step-{step:06d}", None, self.corpus)
        if self._reference is None and not step:
            self._reference = self._to_itself(result)
        return processes().from_leader(self._figures(result) if processes().world.leads else {})

    def _measured(self, model: nn.Module, name: str, baseline: str | None, corpus: Corpus) -> Result:
        """Runs the evaluation of the model as it is, beside a baseline where one is given."""
        model = plain(model)
        with undisturbed(model):
            run = PerplexityRun(unwrapped(model), corpus, [], baseline, self.options)
            if is_shared(model):
                run.scorer = SharedScorer(cast("PreTrainedModel", model), self.options.logits_bytes)
            result: Result = carry_out(run, None, group=processes(model))
        settle_leader(lambda: result.save(self.out / name))
        return result

    def _shortened(self, length: int) -> Corpus:
        """Returns the same windows, of which one length is measured: the tokens are then those of every other run."""
        corpus = copy.copy(self.corpus)
        corpus.lengths, corpus.share = (length,), ShareFacts()
        return corpus

    def _figures(self, result: Result) -> Figures:
        found = {f"eval_ppl_{row.length}": row.ppl for row in result.rows if row.schedule == AS_IS}
        cost = self._cost(result)
        return found if cost is None else {**found, "eval_short_context_cost": cost}

    def _cost(self, result: Result) -> float | None:
        """Returns the nats per token that the model is now worse by, in short context, than before the schedule."""
        reference = self._reference
        if reference is None:
            return None
        found = paired.difference(result, AS_IS, reference.result, reference.label, reference.length)
        return None if found is None else found.mean

    def _to_itself(self, result: Result) -> Reference | None:
        short = paired.short_length(result.lengths, result.trained_length)
        return None if short is None else Reference(result, AS_IS, short)

    def _read_reference(self) -> Reference | None:
        """Returns what was measured before the first step of a training that is continued; None if it was not."""
        with suppress(RopescaleError):
            result = Result.load(self.out / ORIGINAL)
            return Reference(result, BASE, result.lengths[-1])
        with suppress(RopescaleError):
            return self._to_itself(Result.load(self.out / "step-000000"))
        return None


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
