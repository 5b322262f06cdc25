"""Scores a model's answers to a prompt: the NLL, and whether greedy decoding would write the answer.

One forward pass scores the prompt with its answer in place (teacher forcing). If the model ranks every token of the
answer first, given the tokens before it, greedy decoding after the question would write exactly this answer, and
otherwise not (except for ties). For prompts from files, text is also generated. Logits are computed only for the
answers, and are converted to fp32. Several answers to one prompt that are not joined are each scored in a full pass.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ...errors import RunError
from ...models.rotary_modules import quiet_transformers, unset, unwrapped
from ..data.prompts import Prompt, Question
from ..scoring.batches import Arrays, Batch
from ..scoring.memory import device_of, is_out_of_memory
from ..scoring.scorer import not_finite

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_NO_TOKEN = -1
"""The id that pads shorter generated texts."""

Scores = tuple[np.ndarray, np.ndarray]
"""The NLL of each token of an answer in nats, fp32, and whether the token is ranked first, bool."""


def joined(prompts: Sequence[Prompt], scores: Sequence[Scores], written: Sequence[np.ndarray]) -> Arrays:
    """Returns the numbers of a batch of prompts.

    "nll" and "first" have the scores of all answers, prompt after prompt; "ids" has the generated ids, int32 [prompts,
    new tokens], padded with -1.

    Args:
        scores: the scores of each answer.
        written: the generated ids of each prompt; empty without generation.
    """
    ids = np.full((len(prompts), prompts[0].new_tokens), _NO_TOKEN, np.int32)
    for row, own in zip(ids, written):
        row[: len(own)] = own
    nll, first = zip(*scores, strict=True)
    return {"nll": np.concatenate(nll), "first": np.concatenate(first), "ids": ids}


class AnswerScorer:
    """Scores a model's answers to prompts, like :class:`ropescale.evals.scoring.executor.Executor` the tokens of
    documents.

    The prompts of a batch have the same length and number of questions.
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
        targets, logits = ids[-count:].to(logits.device), logits[-count:].float()
        nll = torch.logsumexp(logits, dim=1) - logits.gather(1, targets[:, None]).squeeze(1)
        if not bool(torch.isfinite(nll).all()):
            raise not_finite(self.model, f"in {name}")
        return nll.cpu().numpy(), (logits.argmax(dim=1) == targets).cpu().numpy()
