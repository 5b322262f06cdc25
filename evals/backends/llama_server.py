"""llama.cpp's ``llama-server``, which returns no log-probabilities of a prompt. Each token is forced after the tokens
before it, in a request of its own, and its raw log-probability is returned with it.

Compared with stock transformers in float32; see docs/llama.cpp.md.
"""

import math
from collections.abc import Iterable, Sequence

from pydantic import AliasChoices, AliasPath, BaseModel, Field

from ...errors import ServerError
from ..scoring.batches import Arrays
from .client import Call, NotANumber, Send, parsed
from .engines import Asked, Body, Generating, ServerEngine, TokenId, scores

_FORCE = 1e6
"""The logit bias of the wanted token."""

_PLAIN, _GAP, _FURTHER = 150.0, 50.0, 40.0
"""The logit bias of a token that has an entry, how much less another one gets to be its runner-up, and how much that
changes if it is not."""

_LEAST = 1e-30
"""The smallest probability that float32 holds with all digits."""


class _Candidate(BaseModel):
    """A token with its raw log-probability, or its probability after sampling."""

    id: int
    logprob: float | None = None
    prob: float = 0.0


class _Entry(_Candidate):
    """A generated token, and the most likely ones."""

    tops: list[_Candidate] = Field([], validation_alias=AliasChoices("top_logprobs", "top_probs"))


class _Completed(BaseModel):
    entries: list[_Entry] = Field([], validation_alias="completion_probabilities")
    tokens: list[TokenId] | None = None
    evaluated: int | None = Field(None, validation_alias="tokens_evaluated")
    accepted: int = Field(0, validation_alias=AliasPath("timings", "draft_n_accepted"))
    proposed: int = Field(0, validation_alias=AliasPath("timings", "draft_n"))


_FIELDS = ["completion_probabilities", "tokens", "tokens_evaluated", "timings"]


class LlamaServer(ServerEngine):
    """llama-server's ``/completion`` with a logit bias.

    A token that ends within a character (UTF-8) gets no entry. It is compared with a token that gets one: both are
    favoured, and their probabilities are read after sampling.
    """

    name, version_path, concurrency = "llama-server", "/props", 1
    limit_option = "-c, which its slots share, and which the length in the file caps: ropescale gguf"
    cost = "llama-server scores a token per request, each a decoding step"
    _plain: int | None = None

    def tokenizing(self, text: str) -> Call:
        body = {"model": self.model, "content": text, "add_special": False, "parse_special": False}
        return Call("/tokenize", body, is_optional=True, advice="convert the file with its tokenizer")

    async def score(self, send: Send, asked: Asked) -> Arrays:
        ids = list(asked.ids)
        if isinstance(asked, Generating):
            return self.generated(asked, (await self._written(send, asked)).tokens)
        nll = list[float]()
        first = list[bool]()
        for position in range(len(ids) - asked.count, len(ids)):
            logprob, best = await self._scored(send, ids, position)
            nll.append(self.nll(ids[position], logprob, position))
            first.append(best == ids[position])
        return scores(nll, first)

    async def drafted(self, send: Send, asked: Generating) -> Iterable[float]:
        done = await self._written(send, asked)
        return done.accepted, done.proposed

    async def _written(self, send: Send, asked: Generating) -> _Completed:
        return await self._completed(send, list(asked.ids), n_predict=asked.count, samplers=["temperature"])

    async def _scored(self, send: Send, ids: Sequence[int], position: int) -> tuple[float | None, int]:
        """Returns the log-probability of the token at a position, and the most likely token there."""
        before = list(ids[:position])
        wanted = ids[position]
        if entry := await self._forced(send, before, wanted):
            self._plain = wanted
            return entry.logprob, entry.tops[0].id
        for plain in dict.fromkeys(ids if self._plain is None else [self._plain, *ids]):
            entry = None if plain == wanted else await self._forced(send, before, plain)
            if entry is not None and entry.logprob is not None:
                break
        else:
            raise ServerError(f"{self.url} sent no log-probability of token {wanted} at position {position:,}")
        gap = _GAP
        for _ in range(2):
            bias = [[plain, _PLAIN], [wanted, _PLAIN - gap]]
            how: Body = {"temperature": 1, "samplers": ["temperature"], "n_probs": 2, "post_sampling_probs": True}
            drawn = await self._completed(send, before, logit_bias=bias, **how)
            probs = {each.id: each.prob for one in drawn.entries for each in one.tops}
            if drawn.tokens == [plain] and min(probs.get(plain, 0), probs.get(wanted, 0)) > _LEAST:
                self._plain = plain
                return entry.logprob + math.log(probs[wanted] / probs[plain]) + gap, entry.tops[0].id
            gap += -_FURTHER if drawn.tokens == [plain] else _FURTHER
        raise ServerError(f"{self.url} sent no probability of token {wanted} at position {position:,}")

    async def _forced(self, send: Send, before: Sequence[int], wanted: int) -> _Entry | None:
        """Forces a token, and returns its entry; None if it ends within a character."""
        done = await self._completed(send, before, logit_bias=[[wanted, _FORCE]], n_probs=1)
        if any(each.logprob is None for each in done.entries):
            raise NotANumber(f"{self.url} computes NaN: it sent null for token {wanted} at position {len(before):,}")
        if done.tokens != [wanted] or any(each.id != wanted or not each.tops for each in done.entries):
            raise ServerError(
                f"{self.url} generated {done.tokens} instead of token {wanted}, whatever its bias; serve it without "
                f"a grammar, and the tokenizer's model"
            )
        return done.entries[0] if done.entries else None

    async def _completed(self, send: Send, before: Sequence[int], **how: object) -> _Completed:
        body: Body = {"model": self.model, "prompt": before, "n_predict": 1, "temperature": 0, "return_tokens": True}
        body |= {"cache_prompt": True, "response_fields": _FIELDS, **how}
        call = Call("/completion", body, advice="if it has several slots, serve with -np 1 or a larger -c")
        done = parsed(_Completed, await send(call), self.url)
        if done.evaluated != len(before):
            raise ServerError(f"{self.url} read {done.evaluated} tokens of a prompt of {len(before):,}")
        return done


ENGINE = LlamaServer
