"""A model in this process's memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import TYPE_CHECKING

from ...errors import DataError
from ...models.patching import plan_for
from ...models.rotary_modules import evaluating, whole_config
from ...planning.plan import Plan, is_as_is
from ...request import Request
from ...schedules.specs import is_same, parse, repeated, spelled_out
from ..facts import ModelFacts
from ..progress import Notes
from ..scoring import memory
from ..scoring.batches import Batch
from ..scoring.executor import Executor
from ..scoring.scorer import Scorer
from ..store import Facts
from . import fingerprints
from .answering import AnswerScorer
from .base import Backend
from .remapped import Remapped, is_remapped
from .schedules import HeldTables, Schedules
from .variants import Variant, as_trained, of_own_patch, trained_length

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ..data.documents import Document
    from ..data.prompts import Prompt


class LoadedModel(Backend):
    """A loaded model, which each schedule patches in turn.

    Args:
        path: the checkpoint's folder, whose files are hashed; None hashes the live parameters.
        logits_bytes: the memory for one block of fp32 logits, in bytes; None for that of the device.
        scorer: scores the windows, where the usual scorer cannot.
        as_is: what ``as-is`` measures, for a model in training; None for the model without its patches.
    """

    compares = batches = True

    def __init__(
        self,
        model: PreTrainedModel,
        path: str | os.PathLike[str] | None = None,
        logits_bytes: int | None = None,
        scorer: Scorer | None = None,
        as_is: Variant | None = None,
    ) -> None:
        self._as_is, self._path = as_is or Variant(model, is_unpatched=True), path
        self._plans: dict[str, Plan] = {}
        self.scorer = scorer or Scorer(model, logits_bytes)
        self.model: PreTrainedModel = self.scorer.model
        self.vocabulary = self.scorer.vocabulary
        self.trained = trained_length(model)
        self.protocol = {}

    @cached_property
    def facts(self) -> ModelFacts:  # type: ignore[override]
        """The "model" part of results.json, before any schedule; the weights are hashed once."""
        is_left_out = self._as_is.is_unpatched and bool(of_own_patch(self.model))
        with self._as_is.applied():
            found = fingerprints.describe(self.model, self._path)
        found["attention"] = self.scorer.kernel
        if is_left_out:
            found["as_is"] = "the model without its patch"
        return found

    @cached_property
    def arithmetic(self) -> Facts:  # type: ignore[override]
        """The facts that determine how numbers are rounded: kernels of other versions or devices may differ."""
        own: Facts = {"attention": self.scorer.kernel, "logits_bytes": self.scorer.logits_bytes}
        return own | fingerprints.arithmetic(self.model)

    def variants(self, schedules: Schedules, notes: Notes) -> tuple[list[Variant], str]:
        given = [self._variant(each, schedules) for each in schedules.given]
        given += of_own_patch(self._as_is.model) if schedules.measures_own else []
        base = self._as_is if schedules.baseline is None else self._variant(schedules.baseline, schedules)
        found: dict[str, Variant] = {}
        for variant in (self._as_is, *given, base):
            same = found.get(variant.label)
            if same is None:
                if not any(is_same(variant.asked, each.asked) for each in found.values()):
                    found[variant.label] = variant
            elif not is_same(variant.asked, same.asked):
                raise DataError(f"two different schedules are both called {variant.label!r}; give them different names")
        for repeat in repeated([variant.asked for variant in given]):
            notes.tell(f"note: {repeat}; it is measured once")
        labels = (each.label for each in found.values() if is_same(base.asked, each.asked))
        label = next(labels, base.label)
        if is_remapped(self.model):
            raise DataError(
                "the positions of this model are remapped; leave the block, or give remapped=True", "remapped"
            )
        references = [Remapped(self.model, scale, is_unpatched=True) for scale in (True, False)]
        return [*found.values(), *(references if schedules.remapped else [])], label

    def _variant(self, schedule: object, schedules: Schedules) -> Variant:
        """Returns the model under a schedule, whose plan is made once: before the model was loaded, or here."""
        spec = parse(schedule)
        if is_as_is(spec):
            return self._as_is
        request = Request.of(spec, **schedules.patching)
        plan = schedules.plans.get(spelled_out(spec)) or self._plans.get(str(request))
        # A model loaded from a part of a wrapper's folder has a configuration of its own.
        if plan is None or plan.config.get("model_type") != whole_config(self._as_is.model).model_type:
            plan = self._plans[str(request)] = plan_for(self._as_is.model, request)
        return Variant(self._as_is.model, spec, plan)

    def as_trained(self, length: int) -> HeldTables:
        return as_trained(self.model).tables([length])[length]

    def texts(self, documents: Sequence[Document], bos: int | None, notes: Notes) -> Executor:
        return Executor(self.scorer, documents, bos, notes.warn)

    def answers(self, prompts: Sequence[Prompt], tables: HeldTables) -> AnswerScorer:
        return AnswerScorer(self.model, prompts)

    def differentiable(self) -> PreTrainedModel:
        return self.model

    def ready(self) -> AbstractContextManager[object]:
        return evaluating(self.model)

    def work(self, positions: int) -> float:
        return memory.work(self.model, positions)

    def batch_tokens(self, longest: int) -> int:
        return self.scorer.estimate(longest).batch_tokens(longest)

    def memory(self, batch: Batch) -> str:
        return self.scorer.estimate(batch.fed).described(batch)
