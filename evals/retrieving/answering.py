"""Scores a model's answers to a prompt: the NLL, and whether greedy decoding would write the answer.

One forward pass has the answer in place (teacher forcing). If the model ranks every token of the answer first, given
the tokens before it, greedy decoding from the question on would write exactly this answer; if not, it would not (except
for ties). Prompts from files are also decoded. Only the rows of the answers get logits, read in fp32; sums are fp64.

A prompt with several endings is read once into a KV cache, and each ending continues from there. Some caches cannot be
continued twice, because their state is written in place; a check detects them, and every prompt is then read whole.
"""

from __future__ import annotations

import copy
import gc
import inspect
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import numpy as np
import torch

from ...errors import RunError
from ...models.rotary_modules import unwrapped
from ..scoring.memory import device_of, embedding_shape, is_out_of_memory, release
from ..scoring.scorer import not_finite
from .tasks import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedModel

T = TypeVar("T")

LOG = logging.getLogger(__name__)
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-3}
HALF_TOLERANCE = 0.25
"""The largest difference between a token's NLL from the cache and from the whole prompt, absolute in nats and relative.
In float32, rounding is a hundred times smaller; a wrong cache is off by nats."""


class Score(NamedTuple):
    """The score of one answer.

    Attributes:
        nll: the NLL of the whole answer in nats, fp64.
        correct: whether the model ranks every token of it first.
    """

    nll: float
    correct: bool


@dataclass(frozen=True)
class AnswerTokens:
    """The tokens from position ``first`` on: their NLL (fp64, in nats), and whether each is ranked first."""

    first: int
    nll: np.ndarray
    right: np.ndarray


def scores_of(prompt: Prompt, endings: Sequence[AnswerTokens]) -> list[Score]:
    """Returns the score of each question of a prompt, from the tokens of its endings."""
    scores = []
    for question in prompt.questions:
        tokens = endings[question.ending]
        part = slice(question.start - tokens.first, question.stop - tokens.first)
        scores.append(Score(float(tokens.nll[part].sum()), bool(tokens.right[part].all())))
    return scores


class AnswerScorer:
    """Scores a model's answers to prompts.

    Attributes:
        shares: whether the endings of a prompt share one KV cache of its context.
        forward_passes: the number of full contexts that were fed, without the initial check.
    """

    def __init__(self, model: PreTrainedModel, batch_tokens: int = 8192) -> None:
        self.model: PreTrainedModel = unwrapped(model)
        self.device = device_of(self.model)
        self.vocabulary = embedding_shape(self.model)[0]
        self.batch_tokens = batch_tokens
        self.shares = True
        self.forward_passes = 0
        self._checked = False
        self._keeps = "logits_to_keep" in inspect.signature(self.model.forward).parameters

    def together(self, prompt: Prompt) -> int:
        """Returns the number of prompts like this per forward pass; prompts with several endings are fed separately."""
        return 1 if len(prompt.endings) > 1 else max(1, self.batch_tokens // prompt.length)

    def scores(self, prompts: Sequence[Prompt]) -> list[list[Score]]:
        """Returns the scores of each prompt's questions. The prompts have equal lengths.

        Raises:
            RunError: logits are not finite, or a prompt does not fit into memory.
        """
        if len(prompts[0].endings) > 1:
            return [scores_of(prompt, self._several(prompt)) for prompt in prompts]
        read = self._in_parts([(prompt, 0) for prompt in prompts], self._read)
        return [scores_of(prompt, [tokens]) for prompt, tokens in zip(prompts, read, strict=True)]

    def generated(self, prompts: Sequence[Prompt]) -> list[np.ndarray]:
        """Decodes greedily after each prompt, up to the end-of-text token; returns ids, int64 [tokens].

        Args:
            prompts: prompts with equal numbers of ids and of new tokens.

        Raises:
            RunError: a prompt does not fit into memory.
        """
        return self._in_parts([(prompt, 0) for prompt in prompts], self._generate)

    def _several(self, prompt: Prompt) -> list[AnswerTokens]:
        """Returns the tokens of each ending of one prompt, from one reading if possible."""
        if self.shares and (shared := self._shared(prompt)):
            if self._checked:
                return shared
            self._checked = True
            # The last ending shows whether those before it changed the cache.
            before = self.forward_passes
            (whole,) = self._in_parts([(prompt, len(prompt.endings) - 1)], self._read)
            self.forward_passes = before  # every process checks, so the check does not count
            most = TOLERANCE.get(self.model.dtype, HALF_TOLERANCE)
            self.shares = np.allclose(shared[-1].nll, whole.nll, rtol=most, atol=most, equal_nan=True)
            if self.shares:
                return shared
            LOG.warning(
                "%s computes other logits from its cache; every prompt is read whole", type(self.model).__name__
            )
        return [self._in_parts([(prompt, ending)], self._read)[0] for ending in range(len(prompt.endings))]

    @torch.inference_mode()
    def _shared(self, prompt: Prompt) -> list[AnswerTokens]:
        """Reads the context once and returns the tokens of every ending; empty if that is impossible."""
        first, found = len(prompt.context) + 1, []
        try:
            self.forward_passes += 1
            read = self._forward(self._tensor([prompt.context]), keep=1, use_cache=True)
            cache = getattr(read, "past_key_values", None)
            for ending in () if cache is None else prompt.endings:
                ids = self._tensor([ending])
                output = self._forward(ids, keep=ids.shape[1], past_key_values=_copied(cache), use_cache=True)
                found.append(self._judged(output.logits[0, :-1], ids[0, 1:], first, prompt.name))
            self.shares = bool(found)
            return found
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        self._recover()
        self.shares = False
        LOG.warning("out of memory with the cache of %s; every prompt is read whole from here on", prompt.name)
        return []

    @torch.inference_mode()
    def _read(self, asked: Sequence[tuple[Prompt, int]]) -> list[AnswerTokens]:
        """Returns the tokens of one ending of each prompt, from one forward pass."""
        keep = max(len(prompt.endings[ending]) for prompt, ending in asked)
        ids = self._tensor([prompt.ids(ending) for prompt, ending in asked])
        logits = self._forward(ids, keep, use_cache=False).logits
        self.forward_passes += len(asked)
        first = ids.shape[1] - keep + 1
        rows = zip(logits, ids, asked, strict=True)
        return [self._judged(row[:-1], own[first:], first, prompt.name) for row, own, (prompt, _) in rows]

    @torch.inference_mode()
    def _generate(self, asked: Sequence[tuple[Prompt, int]]) -> list[np.ndarray]:
        from transformers import GenerationConfig

        stated = getattr(self.model.generation_config, "eos_token_id", None)
        ends = [] if stated is None else [int(each) for each in np.atleast_1d(stated)]
        wanted = [prompt.generation for prompt, _ in asked if prompt.generation is not None]
        config = GenerationConfig(
            max_new_tokens=wanted[0].new_tokens, do_sample=False, repetition_penalty=1.0, eos_token_id=ends or None,
            pad_token_id=ends[0] if ends else 0,
        )  # fmt: skip
        ids = self._tensor([each.ids for each in wanted])
        self.forward_passes += len(asked)
        with _without_reminders():
            generate = cast(Callable[..., torch.Tensor], self.model.generate)
            written = generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
        rows = written[:, ids.shape[1] :].cpu().numpy()
        return [row[: int(np.argmax([*np.isin(row, ends), True]))] for row in rows]

    def _in_parts(
        self, asked: Sequence[tuple[Prompt, int]], act: Callable[[Sequence[tuple[Prompt, int]]], list[T]]
    ) -> list[T]:
        """Runs ``act`` on as many prompts at once as ``batch_tokens`` allows; halves the number if memory runs out."""
        found: list[T] = []
        while part := asked[len(found) :]:
            length = part[0][0].length
            part = part[: max(1, self.batch_tokens // length)]
            try:
                found += act(part)
                continue
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
            self._recover()
            if len(part) == 1:
                raise RunError(
                    f"{part[0][0].name} does not fit into the memory of {self.device}; "
                    "use shorter lengths, bfloat16, or a device with more memory",
                    "dtype",
                )
            half = (len(part) + 1) // 2
            self.batch_tokens = half * length
            LOG.warning("out of memory with %d prompts at once; going on with %d", len(part), half)
        return found

    def _forward(self, ids: torch.Tensor, keep: int, **arguments: Any) -> Any:
        """Returns the model's output with the logits of the last ``keep`` positions."""
        if self._keeps:
            return self.model(input_ids=ids, logits_to_keep=keep, **arguments)
        output = self.model(input_ids=ids, **arguments)
        output.logits = output.logits[:, -keep:]
        return output

    def _tensor(self, rows: Sequence[np.ndarray]) -> torch.Tensor:
        return torch.from_numpy(np.stack(rows)).long().to(self.device)

    def _judged(self, logits: torch.Tensor, targets: torch.Tensor, first: int, name: str) -> AnswerTokens:
        """Scores the target tokens by their rows of logits [tokens, vocabulary]."""
        logits = logits.float()
        targets = targets.to(logits.device)
        nll = torch.logsumexp(logits, dim=1) - logits.gather(1, targets[:, None]).squeeze(1)
        if not bool(torch.isfinite(nll).all()):
            raise not_finite(self.model, f"in {name}")
        return AnswerTokens(first, nll.double().cpu().numpy(), (logits.argmax(dim=1) == targets).cpu().numpy())

    def _recover(self) -> None:
        # Called after the handler, because the traceback keeps every tensor of the failed pass.
        gc.collect()
        release(self.device)


@contextmanager
def _without_reminders() -> Iterator[None]:
    """Mutes transformers' warnings about texts beyond ``max_position_embeddings``, which are intended."""
    logger = logging.getLogger("transformers.generation.stopping_criteria")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _copied(cache: Any) -> Any:
    """Returns a cache that can be continued without changing ``cache``; keys and values are not copied.

    Each layer's ``update`` replaces its tensors, so a copy of the layer objects is enough.
    """
    layers = getattr(cache, "layers", None)
    if layers is None:
        return copy.deepcopy(cache)
    fresh = copy.copy(cache)
    fresh.layers = [copy.copy(layer) for layer in layers]
    return fresh
