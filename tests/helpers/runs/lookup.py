"""A model whose answers are known: it copies what followed the same words before, if that is not too far back."""

from __future__ import annotations

import math
from typing import Any

import torch
from tiny import llama
from transformers import DynamicCache, LlamaForCausalLM
from transformers.modeling_outputs import CausalLMOutputWithPast

SURE = 10.0
NOTHING = 255


class LookupLlama(LlamaForCausalLM):
    """Looks for the last place, at most ``reach`` positions back, where the same ``words`` tokens stood, and says what
    came next there with a logit of 10 against 0; where there is none, token 255.

    The reach grows as the slowest rotary pair slows down, so a schedule has a known effect: ``linear:factor=4`` sees
    four times as far. Earlier tokens come through a KV cache as in any model.
    """

    reach = 300.0
    words = 8
    seen: list[dict[str, Any]]

    def forward(self, input_ids, past_key_values=None, use_cache=None, logits_to_keep=0, **unused):  # type: ignore
        table = self.model.rotary_emb.inv_freq
        reach = self.reach * float(self.slowest / table[-1].double())
        kept = logits_to_keep or input_ids.shape[1]
        self.seen.append({"shape": tuple(input_ids.shape), "kept": kept, "slowest": float(table[-1])})
        cache, ids = self._remembered(input_ids, past_key_values, use_cache)
        logits = torch.zeros(len(ids), kept, self.config.vocab_size)
        for row, known in enumerate(ids.tolist()):
            for place in range(kept):
                logits[row, place, follower(known[: len(known) - kept + place + 1], self.words, reach)] = SURE
        return CausalLMOutputWithPast(logits=logits, past_key_values=cache)

    def _remembered(self, ids, cache, wanted):
        cache = DynamicCache() if cache is None and wanted else cache
        if cache is None:
            return None, ids
        states = ids[:, None, :, None].double()
        keys, _ = cache.update(states, states, 0)
        return cache, keys[:, 0, :, 0].long()


def follower(known: list[int], count: int, reach: float) -> int:
    """What followed the last ``count`` tokens, the last time within ``reach``."""
    words, here = known[-count:], len(known)
    for end in range(here - 1, max(count, math.ceil(here - reach)) - 1, -1):
        if known[end - count : end] == words:
            return known[end]
    return NOTHING


def lookup_llama(reach: float = 300.0, words: int = 8, **changes: Any) -> LookupLlama:
    """The model, of 257 tokens (bytes and BOS), trained at 256 positions."""
    plain = llama(vocab_size=257, max_position_embeddings=256, **changes)
    model = LookupLlama(plain.config).eval()
    model.reach, model.words, model.seen = reach, words, []
    model.slowest = float(model.model.rotary_emb.inv_freq[-1].double())
    return model
