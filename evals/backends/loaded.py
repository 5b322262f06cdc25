"""A model in this process's memory, and its variants: patched with a schedule, frozen at a length if needed, and
reverted bit for bit."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ...configs.configuration import trained_in
from ...errors import DataError, RopescaleError, RunError
from ...files import AnyPath
from ...models import patching
from ...models.rotary_modules import evaluating, quiet_transformers, text_config, unset, unwrapped, whole_config
from ...planning.plan import Plan, plan_of_own
from ...request import Request
from ...schedules.specs import ParsedSpec, Spec, is_same, parse, repeated, spelled_out
from ..data.prompts import Prompt, Question, Scores, joined
from ..facts import TRUNCATION, ModelFacts
from ..progress import Notes
from ..scoring.batches import Arrays, Batch, ScoresBatches
from ..scoring.executor import Executor
from ..scoring.memory import device_of, is_out_of_memory
from ..scoring.scorer import Scorer, not_finite
from ..store import Facts
from . import fingerprints
from .base import Backend
from .schedules import UNCHANGED, HeldTables, Schedules

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel

    from ..data.documents import Document


class Variant:
    """A model under a schedule.

    Args:
        schedule: the schedule, parsed; ``as-is`` for the model's current state.
        plan: the plan of the schedule; None for the current state.
        label: the schedule's name in the results; "" for its spec.
        is_unpatched: whether the model's own patches are reverted while the schedule is measured.
    """

    def __init__(
        self,
        model: nn.Module,
        schedule: ParsedSpec = UNCHANGED,
        plan: Plan | None = None,
        label: str = "",
        is_unpatched: bool = False,
    ) -> None:
        self.model = model
        self.asked = schedule
        self.plan = plan
        self.label = label or spelled_out(schedule)
        self.is_unpatched = is_unpatched

    @contextmanager
    def applied(self, length: int | None = None) -> Iterator[patching.Patch | None]:
        """Patches the model inside the block, frozen at ``length`` if given."""
        with patching.unpatched(self.model) if self.is_unpatched else nullcontext():
            if self.plan is None and length is None:
                yield None
                return
            with patching.Patch(self.model, self.plan or self._current, length) as patch:
                yield patch

    @cached_property
    def _current(self) -> Plan:
        """The plan that keeps the model's current state."""
        return patching.plan_for(self.model, Request(UNCHANGED))

    @property
    def rotation(self) -> str:
        """A hash of the model's live tables."""
        return fingerprints.rotation_sha256(unwrapped(self.model))

    def tables(self, lengths: Iterable[int]) -> dict[int, HeldTables]:
        """Returns the tables at each length, or the same object for all lengths if the tables do not depend on them."""
        with self.applied() as patch:
            if not self._depends_on_length(patch):
                return dict.fromkeys(lengths, self._held(None))
        found = {}
        for length in lengths:
            with self.applied(length):
                found[length] = self._held(length)
        return found

    def _held(self, length: int | None) -> HeldTables:
        model = unwrapped(self.model)
        figures = fingerprints.live_tables(model)
        return HeldTables(self, length, self.rotation, fingerprints.table_sha256(model), figures)

    def _depends_on_length(self, patch: patching.Patch | None) -> bool:
        """Returns whether the tables depend on the length because of this patch, because of an earlier patch, or
        because transformers recomputes the tables of ``dynamic`` and ``longrope`` inside ``forward`` and keeps them."""
        if patch is not None:
            return bool(patch.length_dependent)
        if any(outer.length_dependent for outer in patching.patches_in(self.model)):
            return True
        for module in self.model.modules():
            kinds = getattr(module, "rope_type", None)
            for kind in kinds.values() if isinstance(kinds, dict) else [kinds]:
                if isinstance(kind, str) and ("dynamic" in kind or kind == "longrope"):
                    return True
        return False


def of_own_patch(model: nn.Module) -> list[Variant]:
    """Returns the model under its own patch, if it has one."""
    plan = patching.installed(model)
    if plan is None:
        return []
    parts = {key: Spec.of(schedule) for key, schedule in plan.schedules.items()}
    is_same_everywhere = len({part.text for part in parts.values()}) == 1
    spec = next(iter(parts.values())) if is_same_everywhere else parts
    length = patching.held_at(model)
    frozen = f" at {length:,} tokens" if length else ""
    return [Variant(model, spec, label=spelled_out(spec) + frozen)]


def as_trained(model: nn.Module) -> Variant:
    """Returns a model with its training tables, that is, without ropescale's scaling in memory or in its folder."""
    before = patching.configuration_before(model)
    is_scaled = before != whole_config(model).to_dict()
    return Variant(model, plan=plan_of_own(before) if is_scaled else None)


def trained_length(model: nn.Module) -> int | None:
    """Returns the trained length of a model, from its configuration.

    ropescale's scaling, in memory or in the model's folder, is ignored. If the model has scaling of its own, its vendor
    trained it with this scaling up to ``max_position_embeddings``. Schedules start from the original length instead,
    which `ropescale inspect` also shows.
    """
    try:
        return trained_in(patching.configuration_before(model))
    except RopescaleError:  # no readable rotation, such as learned positions
        return getattr(text_config(model), "max_position_embeddings", None)


REMAPPED = "ropescale_remapped"
"""The attention implementation of remapped positions."""


def is_remapped(model: nn.Module) -> bool:
    """Returns whether a model's positions are remapped."""
    return text_config(model)._attn_implementation == REMAPPED


# --- The scorer of answers ---


class AnswerScorer(ScoresBatches):
    """Scores a model's answers to prompts: the NLL, and whether greedy decoding would write the answer.

    One forward pass scores a prompt with its answer in place (teacher forcing). If the model ranks every token of the
    answer first, given the tokens before it, greedy decoding after the question would write exactly this answer, and
    otherwise not (except for ties). For prompts from files, text is also generated. Logits are computed only for the
    answers, and are converted to fp32. Several answers to one prompt that are not joined are each scored in a full
    pass. The prompts of a batch have the same length and number of questions.
    """

    def __init__(self, model: PreTrainedModel, prompts: Sequence[Prompt]) -> None:
        self.model: PreTrainedModel = unwrapped(model)
        self.prompts = prompts
        self.device = device_of(self.model)
        self._keeps = "logits_to_keep" in inspect.signature(self.model.forward).parameters

    def score(self, batch: Batch[int]) -> Arrays:
        """Returns the numbers of a batch; see :func:`joined`."""
        prompts = [self.prompts[number] for number in batch.feeds]
        written = self.generated(prompts) if prompts[0].generation else []
        return joined(prompts, self.scores(prompts), written)

    @torch.inference_mode()
    def scores(self, prompts: Sequence[Prompt]) -> list[Scores]:
        """Scores each answer of the prompts in place. Prompts with one question are fed together.

        Raises:
            RunError: logits are not finite, or the prompts do not fit into memory.
        """
        asked = [(prompt.name, question) for prompt in prompts for question in prompt.questions]
        if len(prompts[0].questions) == 1:
            return self._read(asked)
        return [self._read([each])[0] for each in asked]

    @torch.inference_mode()
    def generated(self, prompts: Sequence[Prompt]) -> list[np.ndarray]:
        """Decodes greedily after each prompt up to the end-of-text token, and returns the ids, int64 [tokens].

        Args:
            prompts: prompts with the same number of ids and of new tokens.

        Raises:
            RunError: the prompts do not fit into memory.
        """
        from transformers import GenerationConfig

        stated = getattr(self.model.generation_config, "eos_token_id", None)
        ends = [] if stated is None else [int(id) for id in np.atleast_1d(stated)]
        config = GenerationConfig(
            max_new_tokens=prompts[0].new_tokens, do_sample=False,
            eos_token_id=ends or None, pad_token_id=ends[0] if ends else 0,
        )  # fmt: skip
        ids = self._tensor([prompt.generation.ids for prompt in prompts if prompt.generation])
        generate: Any = self.model.generate
        mask = torch.ones_like(ids)
        # Unset the model's own settings, such as beams. Hide the warning about texts beyond max_position_embeddings.
        with unset(self.model), quiet_transformers("transformers.generation.stopping_criteria"):
            written = self._within_memory(generate, inputs=ids, attention_mask=mask, generation_config=config)
        rows = written[:, ids.shape[1] :].cpu().numpy()
        return [row[: int(np.argmax([*np.isin(row, ends), True]))] for row in rows]

    def _read(self, asked: Sequence[tuple[str, Question]]) -> list[Scores]:
        """Scores questions of equal length, each given with the name of its prompt, in one pass."""
        ids = self._tensor([question.ids for _, question in asked])
        keep = max(question.tokens for _, question in asked) + 1
        kept = {"logits_to_keep": keep} if self._keeps else {}
        logits = self._within_memory(self.model, input_ids=ids, use_cache=False, **kept).logits[:, -keep:-1]
        return [
            self._scored(row, own, question.tokens, name)
            for row, own, (name, question) in zip(logits, ids, asked, strict=True)
        ]

    def _within_memory(self, run: Callable[..., Any], **arguments: Any) -> Any:
        try:
            return run(**arguments)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        raise RunError(
            f"the prompts do not fit into the memory of {self.device}; use a smaller batch_tokens, shorter lengths, "
            "bfloat16, or a device with more memory",
            "batch_tokens",
            "dtype",
        )

    def _tensor(self, rows: Sequence[np.ndarray]) -> torch.Tensor:
        return torch.from_numpy(np.stack(rows)).long().to(self.device)

    def _scored(self, logits: torch.Tensor, ids: torch.Tensor, count: int, name: str) -> Scores:
        """Scores the last ``count`` ids with the last ``count`` rows of logits, [tokens, vocabulary]."""
        targets = ids[-count:].to(logits.device)
        logits = logits[-count:].float()
        nll = torch.logsumexp(logits, dim=1) - logits.gather(1, targets[:, None]).squeeze(1)
        if not bool(torch.isfinite(nll).all()):
            raise not_finite(self.model, f"in {name}")
        return nll.cpu().numpy(), (logits.argmax(dim=1) == targets).cpu().numpy()


# --- The backend ---


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
        path: AnyPath | None = None,
        logits_bytes: int | None = None,
        scorer: Scorer | None = None,
        as_is: Variant | None = None,
    ) -> None:
        self._as_is = as_is or Variant(model, is_unpatched=True)
        self._path = path
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
            found = fingerprints.describe(self.model, self._path, self.scorer.kernel)
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
        found = []
        for variant in (self._as_is, *given, base):
            if any(is_same(variant.asked, each.asked) for each in found):
                continue
            if variant.label in [TRUNCATION, *(each.label for each in found)]:
                raise DataError(f"two different schedules are both called {variant.label!r}; give them different names")
            found.append(variant)
        for repeat in repeated([variant.asked for variant in given]):
            notes.tell(f"note: {repeat}; it is measured once")
        label = next(each.label for each in found if is_same(base.asked, each.asked))
        if is_remapped(self.model):
            raise DataError(
                "the positions of this model are remapped; leave the block, or give remapped=True", "remapped"
            )
        return found, label

    def _variant(self, schedule: object, schedules: Schedules) -> Variant:
        """Returns the model under a schedule, whose plan is made once: before the model was loaded, or here."""
        spec = parse(schedule)
        if is_same(spec, UNCHANGED):
            return self._as_is
        request = Request.of(spec, **schedules.patching)
        plan = schedules.plans.get(spelled_out(spec)) or self._plans.get(str(request))
        # A model loaded from a part of a wrapper's folder has a configuration of its own.
        if plan is None or plan.config.get("model_type") != whole_config(self._as_is.model).model_type:
            plan = self._plans[str(request)] = patching.plan_for(self._as_is.model, request)
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

    def batch_tokens(self, longest: int) -> int:
        return self.scorer.estimate(longest).batch_tokens(longest)

    def memory(self, batch: Batch) -> str:
        return self.scorer.estimate(batch.fed).described(batch)
