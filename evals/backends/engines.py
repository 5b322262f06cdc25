"""Prompt scoring by engines over HTTP: the request, and the log-probabilities in the response.

The scores of vLLM 0.32.0 in float32 were compared with stock transformers. The support for SGLang was written from
SGLang's source code, and was not run against a server.
"""

from __future__ import annotations

import math
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, NotRequired

import numpy as np
from pydantic import AliasPath, BaseModel, FailFast, Field
from typing_extensions import TypedDict

from ...errors import DataError, ServerError
from ...output.formatting import listed, named
from ..scoring.batches import Arrays
from .client import SMALL, Call, Client, NotANumber, parsed

_LOWEST, _HIGHEST = -9000.0, 0.01
"""The range of valid log-probabilities: vLLM writes -9999 for minus infinity, and rounding may exceed zero."""

ROW = 640
"""The size limit of a response in bytes per token: a number of 20 digits, an id, a rank, and the token's text."""

TokenId = Annotated[int, Field(ge=0, lt=2**31)]
"""A generated id, which is stored as int32."""

Body = dict[str, object]
"""The JSON of a request."""


class Token(TypedDict):
    """A token at a position: its log-probability, and its rank from 1."""

    logprob: float | None
    rank: NotRequired[int | None]


Position = dict[int, Token] | None
"""The tokens that a response lists for a position, by id."""


@dataclass(frozen=True)
class Scoring:
    """A request for the scores of the last ``count`` of ``ids``, and for their ranks if ``ranked``.

    The answer is "nll" in nats, fp32 [count], and "first", whether a token has rank 1, bool [count].
    """

    ids: Sequence[int]
    count: int
    ranked: bool = False


@dataclass(frozen=True)
class Generating:
    """A request for greedy decoding of up to ``count`` tokens after ``ids``. The answer is "ids", the generated tokens,
    int32 [tokens]."""

    ids: Sequence[int]
    count: int


Asked = Scoring | Generating


class PromptScoring(ABC):
    """The requests and responses of an engine.

    Attributes:
        model: the served model's name.
        limit: the maximum number of positions of prompt and generated text together; None if unknown.
        version: the engine's version.
        url: the server's address, for messages.
        path: the path of requests for scores or generated ids.
        limit_option: the engine's option that sets the limit.
        reserved: the number of positions within the limit that a window cannot use.
    """

    name: ClassVar[str]
    path: ClassVar[str]
    version_path: ClassVar[str]
    limit_option: ClassVar[str]
    reserved: ClassVar[int] = 0

    def __init__(self, model: str, limit: int | None, version: str, url: str) -> None:
        self.model, self.limit, self.version, self.url = model, limit, version, url

    @property
    def about(self) -> str:
        """The engine and its version."""
        return f"{self.name} {self.version}"

    @property
    def longest(self) -> int | None:
        """The length of the longest window that the engine can score; None if unknown."""
        return None if self.limit is None else self.limit - self.reserved

    @abstractmethod
    def body(self, asked: Asked) -> Body:
        """Returns the JSON of a request for scores or generated ids."""

    @abstractmethod
    def parts(self, content: bytes, ids: Sequence[int]) -> tuple[Sequence[Position], list[int] | None]:
        """Returns all positions of the prompt except the first, and the generated ids, from a response."""

    def call(self, asked: Asked) -> Call:
        """Returns the HTTP request for scores or generated ids."""
        tokens = asked.count if isinstance(asked, Generating) else (1 + asked.ranked) * len(asked.ids)
        return Call(self.path, self.body(asked), SMALL + ROW * tokens)

    def answer(self, asked: Asked, content: bytes) -> Arrays:
        """Returns the scores or generated ids from a response.

        Raises:
            ServerError: the response is invalid, a requested log-probability or rank is missing or out of range, or
                generated ids are missing or too many.
        """
        positions, generated = self.parts(content, asked.ids)
        if isinstance(asked, Generating):
            if generated is None or len(generated) > asked.count:
                count = "no" if generated is None else f"{len(generated):,}"
                raise ServerError(f"{self.url} sent {count} generated ids instead of at most {asked.count:,}")
            return {"ids": np.array(generated, np.int32)}
        if len(positions) != len(asked.ids) - 1:
            raise ServerError(f"{self.url} sent {len(positions):,} log-probabilities for {len(asked.ids) - 1:,} tokens")
        nll, first = list[float](), list[bool]()
        for number, (tokens, id) in enumerate(zip(positions, asked.ids[1:], strict=True), 1):
            token = (tokens or {}).get(id)
            if token is None:
                raise ServerError(
                    f"{self.url} sent no log-probability of token {id} at position {number:,}; serve the "
                    f"tokenizer's model, without prefix caching"
                )
            logprob, rank = token["logprob"], token.get("rank")
            if logprob is None or math.isnan(logprob):
                raise NotANumber(f"{self.url} computes NaN: it sent {logprob} for token {id} at position {number:,}")
            if not _LOWEST < logprob < _HIGHEST:
                raise ServerError(f"{self.url} sent {logprob} for token {id} at position {number:,}")
            if asked.ranked and rank is None:
                raise ServerError(f"{self.url} sent no ranks of tokens")
            nll.append(-logprob)
            first.append(rank == 1)
        start = len(nll) - asked.count
        return {"nll": np.array(nll[start:], np.float32), "first": np.array(first[start:], np.bool_)}


# --- vLLM


class _Choice(BaseModel):
    """The log-probabilities of a prompt, and the log-probabilities and ids of the generated text."""

    prompt: Annotated[list[Position] | None, FailFast(), Field(validation_alias="prompt_logprobs")] = None
    logprobs: Annotated[list[float | None] | None, Field(validation_alias=AliasPath("logprobs", "token_logprobs"))] = (
        None
    )
    tops: Annotated[list[dict[str, float] | None], Field(validation_alias=AliasPath("logprobs", "top_logprobs"))] = []
    token_ids: Annotated[list[TokenId] | None, FailFast()] = None


class _Completion(BaseModel):
    choices: tuple[_Choice]


class VLLM(PromptScoring):
    """vLLM's ``/v1/completions`` with ``prompt_logprobs``.

    vLLM generates at least one token, so it rejects a prompt that is as long as its limit. For such a window, the
    prompt omits the last token, and vLLM may generate only this token; its raw log-probability is the same as in a
    prompt.
    """

    name, path, version_path, limit_option = "vLLM", "/v1/completions", "/version", "--max-model-len"

    def body(self, asked: Asked) -> Body:
        body: Body = {"model": self.model, "prompt": list(asked.ids), "temperature": 0}
        if isinstance(asked, Generating):
            return {**body, "max_tokens": asked.count, "repetition_penalty": 1.0, "return_token_ids": True}
        # A salt prevents reuse of the cached prefix of another request.
        body |= {"max_tokens": 1, "prompt_logprobs": 0, "cache_salt": uuid.uuid4().hex}
        if len(asked.ids) == self.limit:
            [*before, last] = asked.ids
            body |= {"prompt": before, "logprobs": 2, "allowed_token_ids": [last], "return_token_ids": True}
        return body

    def parts(self, content: bytes, ids: Sequence[int]) -> tuple[Sequence[Position], list[int] | None]:
        [choice] = parsed(_Completion, content, self.url).choices
        positions: list[Position] = (choice.prompt or [])[1:]
        if len(ids) == self.limit:
            # Processed log-probabilities are minus infinity for all but the allowed token. (Its own proves nothing,
            # because a raw probability may round to 1, too.)
            if any(value <= _LOWEST for tokens in choice.tops for value in (tokens or {}).values()):
                raise ServerError(
                    f"{self.url} sent processed log-probabilities; serve with --logprobs-mode raw_logprobs"
                )
            for id, value, tops in zip(choice.token_ids or [], choice.logprobs or [], choice.tops, strict=False):
                above = sum(other >= (value or 0) for other in (tops or {}).values())  # itself, if it is the first
                positions.append({id: {"logprob": value, "rank": max(above, 1)}})
        return positions, choice.token_ids


# --- SGLang

_Logprob = tuple[float | None, int, object]
"""A log-probability, the token's id and its text."""


class _Generation(BaseModel):
    """The log-probabilities of a prompt, the most likely tokens of its positions, and the generated ids."""

    prompt: Annotated[
        list[_Logprob], FailFast(), Field(validation_alias=AliasPath("meta_info", "input_token_logprobs"))
    ] = []
    tops: Annotated[
        list[list[_Logprob] | None] | None, Field(validation_alias=AliasPath("meta_info", "input_top_logprobs"))
    ] = None
    output_ids: Annotated[list[TokenId] | None, FailFast()] = None


class SGLang(PromptScoring):
    """SGLang's ``/generate`` with ``return_logprob`` from the first position."""

    name, path, version_path = "SGLang", "/generate", "/get_server_info"
    limit_option = "--context-length, one more than the window"
    reserved = 1  # for the generated token

    def body(self, asked: Asked) -> Body:
        sampling = {"max_new_tokens": 1, "temperature": 0}
        if isinstance(asked, Generating):
            sampling |= {"max_new_tokens": asked.count, "repetition_penalty": 1.0}
            return {"input_ids": list(asked.ids), "sampling_params": sampling}
        body: Body = {"input_ids": list(asked.ids), "sampling_params": sampling, "return_logprob": True}
        return {**body, "logprob_start_len": 0, "top_logprobs_num": int(asked.ranked)}

    def parts(self, content: bytes, ids: Sequence[int]) -> tuple[Sequence[Position], list[int] | None]:
        answer = parsed(_Generation, content, self.url)
        positions: list[Position] = [{id: {"logprob": value}} for value, id, _ in answer.prompt]
        for position, tops in zip(positions, answer.tops or [], strict=False):
            for id, token in (position or {}).items():
                token["rank"] = (1 if tops[0][1] == id else 2) if tops else None
        return positions[1:], answer.output_ids


# --- Detecting the engine


class _Card(BaseModel):
    id: str
    owned_by: str | None = None
    max_model_len: int | None = None


class _Models(BaseModel):
    data: list[_Card] = []


class _Version(BaseModel):
    version: str | None = None


_BY_OWNER: dict[str | None, type[PromptScoring]] = {"vllm": VLLM, "sglang": SGLang}
"""Engines that can score, by the ``owned_by`` of their models."""


def engine_of(client: Client, wanted: str | None = None) -> PromptScoring:
    """Detects a server's engine and served model.

    Args:
        wanted: the model's name. None selects the first model, because servers list adapters after their base model.

    Raises:
        ServerError: the server cannot be reached, or its engine cannot score prompts.
        DataError: the server does not serve that model.
    """
    cards = client.ask("/v1/models", _Models).data
    owner = cards[0].owned_by if cards else None
    if owner == "llamacpp":
        raise ServerError(
            f"{client.url} is llama-server, which returns no log-probabilities of a prompt; measure the file with "
            "llama-perplexity -m model.gguf -f text, or with llama-cpp-python, which gives the logits of all tokens"
        )
    if owner not in _BY_OWNER:
        what = f"a server of {named(owner)}" if owner else "a server of an unknown engine"
        raise ServerError(
            f"{client.url} is {what}; only vLLM (vllm serve) and SGLang can score a prompt; serve the model with one "
            f"of them, or measure the checkpoint itself: ropescale eval MODEL"
        )
    matching = [card for card in cards if wanted in (None, card.id)]
    if not matching:
        names = listed([named(card.id) for card in cards])
        raise DataError(f"{client.url} does not serve {named(str(wanted))}; it serves {names}", "served_name")
    kind, card = _BY_OWNER[owner], matching[0]
    limit = next((each.max_model_len for each in (card, *cards) if each.max_model_len is not None), None)
    version = client.ask(kind.version_path, _Version).version
    return kind(card.id, limit, version or "of an unknown version", client.url)
