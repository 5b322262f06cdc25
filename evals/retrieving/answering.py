"""Scores a model's answers to a prompt: the NLL, and whether greedy decoding would write the answer.

One forward pass has the answer in place (teacher forcing). If the model ranks every token of the answer first, given
the tokens before it, greedy decoding from the question on would write exactly this answer; if not, it would not (except
for ties). Prompts from files are also decoded. Only the rows of the answers get logits, read in fp32.

A prompt with several questions is read once into a KV cache, and each question continues from a copy. Some models
compute other logits from their cache; a check on the first prompt detects them, and every question is then read whole.
"""

from __future__ import annotations

import copy
import gc
import inspect
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import torch

from ...errors import RunError
from ...models.rotary_modules import quiet_transformers, unset, unwrapped
from ..scoring.batches import Batch, Scored
from ..scoring.memory import device_of, embedding_shape, is_out_of_memory, release
from ..scoring.scorer import not_finite
from .tasks import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedModel

T = TypeVar("T")

LOG = logging.getLogger(__name__)

InPlace = Sequence[tuple[np.ndarray, np.ndarray]]
"""For each question of a prompt, its answer's tokens: NLL in nats, and whether each is ranked first."""

_EXACT, _ROUNDED = 1e-3, 0.25
"""The most that a token's NLL from the cache may differ from that of the whole prompt, absolute in nats and relative:
in float32, and in half precision. Rounding is a hundred times smaller; a wrong cache is off by nats."""

_NO_TOKEN = -1
"""The padding of shorter generated texts."""


def stored_numbers(prompt: Prompt) -> int:
    """Counts the stored numbers of a prompt: two per token of its answers, and the generated ids."""
    generated = prompt.generation.new_tokens if prompt.generation else 0
    return 2 * sum(question.tokens for question in prompt.questions) + generated


def pack(prompt: Prompt, scores: InPlace, written: Sequence[int] | np.ndarray = ()) -> np.ndarray:
    """Packs the scores of a prompt and the generated ids, as fp32, which holds ids below 2^24 exactly."""
    numbers = np.concatenate([*(nll for nll, _ in scores), *(right for _, right in scores), written])
    padding = stored_numbers(prompt) - len(numbers)
    return np.pad(numbers, (0, padding), constant_values=_NO_TOKEN).astype(np.float32)


def unpack(prompt: Prompt, numbers: np.ndarray) -> tuple[InPlace, list[int]]:
    """Returns the scores of a prompt and the generated ids."""
    sizes = [question.tokens for question in prompt.questions]
    *parts, written = np.split(numbers, np.cumsum(sizes * 2))
    scores = [(nll, right > 0) for nll, right in zip(parts[: len(sizes)], parts[len(sizes) :], strict=True)]
    return scores, [int(id) for id in written if id != _NO_TOKEN]


class AnswerScorer:
    """Scores a model's answers to prompts, as many together as ``batch_tokens`` allows."""

    def __init__(self, model: PreTrainedModel, batch_tokens: int = 8192) -> None:
        self.model: PreTrainedModel = unwrapped(model)
        self.device = device_of(self.model)
        self.vocabulary = embedding_shape(self.model)[0]
        self.batch_tokens = batch_tokens
        self._shares: bool | None = None
        self._keeps = "logits_to_keep" in inspect.signature(self.model.forward).parameters

    def scores(self, prompts: Sequence[Prompt]) -> list[InPlace]:
        """Returns the scores of the answers in place. The prompts have equal lengths and numbers of questions.

        Raises:
            RunError: logits are not finite, or a prompt does not fit into memory.
        """
        if len(prompts[0].questions) > 1:
            if self._shares is None:
                self._shares = self._cache_agrees(prompts[0])
            if self._shares:
                return [scores for prompt in prompts for scores in self._in_parts(self._read_shared, [prompt])]
        single = [replace(prompt, questions=(question,)) for prompt in prompts for question in prompt.questions]
        scores = chain.from_iterable(self._in_parts(self._read, single))
        return [list(islice(scores, len(prompt.questions))) for prompt in prompts]

    def generated(self, prompts: Sequence[Prompt]) -> list[np.ndarray]:
        """Decodes greedily after each prompt, up to the end-of-text token; returns ids, int64 [tokens].

        Args:
            prompts: prompts with equal numbers of ids and of new tokens.

        Raises:
            RunError: a prompt does not fit into memory.
        """
        return self._in_parts(self._generate, prompts)

    @torch.inference_mode()
    def _read(self, prompts: Sequence[Prompt]) -> list[InPlace]:
        """Reads whole prompts with one question each."""
        keep = max(len(prompt.questions[0].ids) for prompt in prompts)
        ids = self._tensor([prompt.ids() for prompt in prompts])
        logits = self._forward(ids, keep, use_cache=False).logits
        return [
            [self._scored(row[:-1], own, prompt.questions[0].tokens, prompt.name)]
            for row, own, prompt in zip(logits, ids, prompts, strict=True)
        ]

    @torch.inference_mode()
    def _read_shared(self, prompts: Sequence[Prompt]) -> list[InPlace]:
        """Reads the text of one prompt, and then each of its questions."""
        (prompt,) = prompts
        cache, scores = self._forward(self._tensor([prompt.context]), 1, use_cache=True).past_key_values, []
        for question in prompt.questions:
            ids = self._tensor([question.ids])
            # Some caches are written in place, so each question continues from a copy.
            output = self._forward(ids, ids.shape[1], past_key_values=copy.deepcopy(cache), use_cache=True)
            scores.append(self._scored(output.logits[0, :-1], ids[0], question.tokens, prompt.name))
        return [scores]

    def _cache_agrees(self, prompt: Prompt) -> bool:
        """Whether a prompt's last question scores alike from the cache, after the others, and in the whole prompt."""
        most = _EXACT if self.model.dtype.itemsize >= 4 else _ROUNDED
        try:
            [[*_, (shared, _)]] = self._in_parts(self._read_shared, [prompt])
            [[(whole, _)]] = self._in_parts(self._read, [replace(prompt, questions=prompt.questions[-1:])])
            agrees = bool(np.allclose(shared, whole, rtol=most, atol=most))
        except Exception:  # no such cache, or no memory for it
            agrees = False
        if not agrees:
            LOG.warning("%s computes other logits from its cache; questions are read whole", type(self.model).__name__)
        return agrees

    @torch.inference_mode()
    def _generate(self, prompts: Sequence[Prompt]) -> list[np.ndarray]:
        from transformers import GenerationConfig

        stated = getattr(self.model.generation_config, "eos_token_id", None)
        ends = [] if stated is None else [int(id) for id in np.atleast_1d(stated)]
        generations = [prompt.generation for prompt in prompts if prompt.generation is not None]
        config = GenerationConfig(
            max_new_tokens=generations[0].new_tokens, do_sample=False,
            eos_token_id=ends or None, pad_token_id=ends[0] if ends else 0,
        )  # fmt: skip
        ids = self._tensor([generation.ids for generation in generations])
        # Without the model's own settings, such as beams; it would warn of texts beyond max_position_embeddings.
        with unset(self.model), quiet_transformers("transformers.generation.stopping_criteria"):
            generate = cast(Callable[..., torch.Tensor], self.model.generate)
            written = generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
        rows = written[:, ids.shape[1] :].cpu().numpy()
        return [row[: int(np.argmax([*np.isin(row, ends), True]))] for row in rows]

    def _in_parts(self, act: Callable[[Sequence[Prompt]], list[T]], prompts: Sequence[Prompt]) -> list[T]:
        """Runs ``act`` on as many prompts at once as ``batch_tokens`` allows; halves the number if memory runs out."""
        found: list[T] = []
        while part := prompts[len(found) :]:
            length = part[0].length
            part = part[: max(1, self.batch_tokens // length)]
            try:
                found += act(part)
                continue
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
            # Outside the handler, because the traceback keeps every tensor of the failed pass alive.
            gc.collect()
            release(self.device)
            if len(part) == 1:
                raise RunError(
                    f"{part[0].name} does not fit into the memory of {self.device}; "
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

    def _scored(self, logits: torch.Tensor, ids: torch.Tensor, count: int, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Scores the last ``count`` ids by the last rows of logits [tokens, vocabulary], each for the next id."""
        targets, logits = ids[-count:].to(logits.device), logits[-count:].float()
        nll = torch.logsumexp(logits, dim=1) - logits.gather(1, targets[:, None]).squeeze(1)
        if not bool(torch.isfinite(nll).all()):
            raise not_finite(self.model, f"in {name}")
        return nll.cpu().numpy(), (logits.argmax(dim=1) == targets).cpu().numpy()


class PromptBatches:
    """Scores the batches of prompts of one length, as :class:`.executor.Executor` does those of documents."""

    def __init__(self, scorer: AnswerScorer, prompts: Sequence[Prompt]) -> None:
        self.scorer, self.prompts = scorer, prompts

    def score(self, batch: Batch) -> Scored:
        """Returns the packed scores of a batch."""
        prompts = [self.prompts[feed.document] for feed in batch.feeds]
        scores = self.scorer.scores(prompts)
        written = self.scorer.generated(prompts) if prompts[0].generation else [()] * len(prompts)
        return Scored(np.concatenate([pack(*each) for each in zip(prompts, scores, written, strict=True)]))
