"""Scores a model's answers to a prompt: the NLL, and whether greedy decoding would write the answer.

One forward pass scores the prompt with its answer in place (teacher forcing). If the model ranks every token of the
answer first, given the tokens before it, greedy decoding after the question would write exactly this answer, and
otherwise not (except for ties). For prompts from files, text is also generated. Logits are computed only for the
answers, and are converted to fp32.

A prompt with several questions is read once into a KV cache, and each question continues from a copy. Some models
compute different logits with their cache. A check on the first prompt detects these models, for which each question is
scored in a full pass.
"""

from __future__ import annotations

import copy
import inspect
import logging
from collections.abc import Callable, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ...errors import RunError
from ...models.rotary_modules import quiet_transformers, unset, unwrapped
from ..scoring.batches import Batch, Scored
from ..scoring.memory import device_of, embedding_shape, is_out_of_memory
from ..scoring.scorer import not_finite
from .tasks import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LOG = logging.getLogger(__name__)

_EXACT, _ROUNDED = 1e-3, 0.25
"""The largest difference, absolute in nats and relative, between a token's NLL with the cache and in a full pass, in
float32 and in half precision. Rounding errors are a hundred times smaller; a wrong cache causes errors of whole
nats."""

_NO_TOKEN = -1
"""The id that pads shorter generated texts."""


def stored_numbers(prompt: Prompt) -> int:
    """Returns the number of stored numbers of a prompt: two per token of its answers, and the generated ids."""
    return 2 * prompt.answer_tokens + prompt.new_tokens


def pack(prompt: Prompt, scores: np.ndarray, written: Sequence[int] | np.ndarray = ()) -> np.ndarray:
    """Packs the scores of a prompt and the generated ids as fp32, which represents ids below 2^24 exactly."""
    numbers = np.concatenate([scores.ravel(), written])
    return np.pad(numbers, (0, stored_numbers(prompt) - len(numbers)), constant_values=_NO_TOKEN).astype(np.float32)


def unpack(prompt: Prompt, numbers: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """Returns the scores of a prompt, [2, tokens], and the generated ids."""
    scores, written = np.split(numbers, [2 * prompt.answer_tokens])
    return scores.reshape(2, -1), [int(id) for id in written if id != _NO_TOKEN]


class AnswerScorer:
    """Scores a model's answers to prompts of equal length with the same number of questions.

    Args:
        batch_tokens: the maximum number of positions fed together; at least one prompt is fed.
    """

    def __init__(self, model: PreTrainedModel, batch_tokens: int = 8192) -> None:
        self.model: PreTrainedModel = unwrapped(model)
        self.device = device_of(self.model)
        self.vocabulary = embedding_shape(self.model)[0]
        self.batch_tokens = batch_tokens
        self._agrees: bool | None = None
        self._keeps = "logits_to_keep" in inspect.signature(self.model.forward).parameters

    @torch.inference_mode()
    def scores(self, prompts: Sequence[Prompt]) -> list[np.ndarray]:
        """Scores the answers in place.

        Returns:
            For each prompt, fp32 [2, tokens of its answers]: the NLL of each token in nats, and 1 if the token is
            ranked first, else 0.

        Raises:
            RunError: logits are not finite, or the prompts do not fit into memory.
        """
        if len(prompts[0].questions) > 1 and self._cache_agrees(prompts[0]):
            return [self._read_shared(prompt) for prompt in prompts]
        asked = [(prompt, number) for prompt in prompts for number in range(len(prompt.questions))]
        together = max(1, self.batch_tokens // prompts[0].length)
        parts = (self._read(asked[start : start + together]) for start in range(0, len(asked), together))
        rows = chain.from_iterable(parts)
        return [np.concatenate(list(islice(rows, len(prompt.questions))), axis=1) for prompt in prompts]

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
        given = {"inputs": ids, "attention_mask": torch.ones_like(ids)}
        # Unset the model's own settings, such as beams. Hide the warning about texts beyond max_position_embeddings.
        with unset(self.model), quiet_transformers("transformers.generation.stopping_criteria"):
            written = self._within_memory(generate, **given, generation_config=config)
        rows = written[:, ids.shape[1] :].cpu().numpy()
        return [row[: int(np.argmax([*np.isin(row, ends), True]))] for row in rows]

    def _read(self, asked: Sequence[tuple[Prompt, int]]) -> list[np.ndarray]:
        """Scores pairs of a prompt and the number of one of its questions, each in a full pass."""
        questions = [prompt.questions[number] for prompt, number in asked]
        ids = self._tensor([prompt.ids(number) for prompt, number in asked])
        logits = self._forward(ids, max(len(question.ids) for question in questions), use_cache=False).logits
        return [
            self._scored(row[:-1], own, question.tokens, prompt.name)
            for row, own, question, (prompt, _) in zip(logits, ids, questions, asked, strict=True)
        ]

    def _read_shared(self, prompt: Prompt) -> np.ndarray:
        """Scores all questions of a prompt, whose text is read only once."""
        cache, scores = self._forward(self._tensor([prompt.context]), 1, use_cache=True).past_key_values, []
        for question in prompt.questions:
            ids = self._tensor([question.ids])
            # Some caches are written in place, so each question continues from a copy.
            output = self._forward(ids, ids.shape[1], past_key_values=copy.deepcopy(cache), use_cache=True)
            scores.append(self._scored(output.logits[0, :-1], ids[0], question.tokens, prompt.name))
        return np.concatenate(scores, axis=1)

    def _cache_agrees(self, prompt: Prompt) -> bool:
        """Checks whether the first prompt's last question gets the same score from the cache, after the other
        questions, as in a full pass."""
        if self._agrees is None:
            most = _EXACT if self.model.dtype.itemsize >= 4 else _ROUNDED
            try:
                [whole] = self._read([(prompt, len(prompt.questions) - 1)])
                shared = self._read_shared(prompt)[:, -whole.shape[1] :]
                self._agrees = bool(np.allclose(shared[0], whole[0], rtol=most, atol=most))
            except Exception:  # the model does not support the cache, or has no memory for it
                self._agrees = False
            if not self._agrees:
                name = type(self.model).__name__
                LOG.warning("%s computes different logits with its cache; each question is scored in a full pass", name)
        return self._agrees

    def _forward(self, ids: torch.Tensor, keep: int, **arguments: Any) -> Any:
        """Returns the model's output with the logits of the last ``keep`` positions."""
        if self._keeps:
            return self._within_memory(self.model, input_ids=ids, logits_to_keep=keep, **arguments)
        output = self._within_memory(self.model, input_ids=ids, **arguments)
        output.logits = output.logits[:, -keep:]
        return output

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

    def _scored(self, logits: torch.Tensor, ids: torch.Tensor, count: int, name: str) -> np.ndarray:
        """Scores the last ``count`` ids with the last ``count`` rows of logits, [tokens, vocabulary]."""
        targets, logits = ids[-count:].to(logits.device), logits[-count:].float()
        nll = torch.logsumexp(logits, dim=1) - logits.gather(1, targets[:, None]).squeeze(1)
        if not bool(torch.isfinite(nll).all()):
            raise not_finite(self.model, f"in {name}")
        return torch.stack([nll, (logits.argmax(dim=1) == targets).to(nll.dtype)]).cpu().numpy()


class PromptBatches:
    """Scores batches of prompts of one length, like :class:`ropescale.evals.scoring.executor.Executor` for
    documents."""

    def __init__(self, scorer: AnswerScorer, prompts: Sequence[Prompt]) -> None:
        self.scorer, self.prompts = scorer, prompts

    def score(self, batch: Batch) -> Scored:
        """Returns the packed scores of a batch."""
        prompts = [self.prompts[feed.document] for feed in batch.feeds]
        scores = self.scorer.scores(prompts)
        written = self.scorer.generated(prompts) if prompts[0].generation else [()] * len(prompts)
        return Scored(np.concatenate([pack(*each) for each in zip(prompts, scores, written, strict=True)]))
