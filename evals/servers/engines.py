"""Prompt scoring by engines over HTTP: the request, and the log-probabilities in the response.

vLLM was run (0.32.0, float32, against stock transformers). SGLang is written from its source and was not run.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, NotRequired

import numpy as np
from pydantic import AliasPath, BaseModel, FailFast, Field
from typing_extensions import TypedDict

from ...errors import DataError, ServerError
from ...output.formatting import listed, named
from .client import SMALL, Call, Client

_LOWEST, _HIGHEST = -9000.0, 0.01
"""The range of log-probabilities: vLLM writes -9999 for minus infinity, and rounding may pass zero."""

ROW = 640
"""The most response bytes per token: a number of 20 digits, an id, a rank, and the token's text."""

TokenId = Annotated[int, Field(ge=0, lt=2**24)]
"""A generated id, which is stored as fp32."""

Body = dict[str, object]
"""The JSON of a request."""


class Token(TypedDict):
    """A token at a position: its log-probability, and its rank from 1."""

    logprob: float | None
    rank: NotRequired[int | None]


Position = dict[int, Token] | None
"""The tokens that a response has for a position, by id."""


@dataclass(frozen=True)
class Scoring:
    """Asks for the scores of the last ``count`` of some ids, and also for their ranks if ``ranked``.

    The answer is fp32 [2, count]: the NLL in nats, and 1 for a token of rank 1, else 0.
    """

    ids: Sequence[int]
    count: int
    ranked: bool = False


@dataclass(frozen=True)
class Generating:
    """Asks for greedy decoding of up to ``count`` tokens after some ids. The answer is their ids, int64 [tokens]."""

    ids: Sequence[int]
    count: int


class PromptScoring(ABC):
    """The requests and responses of an engine. Invalid responses raise pydantic's ValidationError.

    Attributes:
        model: the served model's name.
        limit: the most positions of prompt and generated text together; None if unknown.
        version: the engine's version.
        path: the path of requests to score or generate.
        limit_option: the engine's option to set the limit.
        reserved: the positions of the limit that a window cannot use.
    """

    name: ClassVar[str]
    path: ClassVar[str]
    version_path: ClassVar[str]
    limit_option: ClassVar[str]
    reserved: ClassVar[int] = 0

    def __init__(self, model: str, limit: int | None, version: str) -> None:
        self.model, self.limit, self.version = model, limit, version

    @property
    def about(self) -> str:
        """The engine and its version."""
        return f"{self.name} {self.version}"

    @property
    def longest(self) -> int | None:
        """The most positions of a window that the engine can score."""
        return None if self.limit is None else self.limit - self.reserved

    @abstractmethod
    def scoring(self, ids: Sequence[int], ranked: bool) -> Body:
        """Returns the request for the log-probability of every id except the first, and for its rank if needed."""

    @abstractmethod
    def positions(self, content: bytes, ids: Sequence[int]) -> Sequence[Position]:
        """Parses every position except the first from a response to the request for these ids."""

    @abstractmethod
    def generating(self, ids: Sequence[int], new_tokens: int) -> Body:
        """Returns the request for greedy decoding after these ids."""

    @abstractmethod
    def generated(self, content: bytes) -> list[int] | None:
        """Parses the generated ids from a response."""

    def request(self, asked: Scoring | Generating) -> Call[np.ndarray]:
        """Returns the request for some scores or generated ids."""
        if isinstance(asked, Generating):
            read, body = partial(self._ids, asked), self.generating(asked.ids, asked.count)
            return Call(self.path, read, body, SMALL + ROW * asked.count)
        read, body = partial(self._scores, asked), self.scoring(asked.ids, asked.ranked)
        return Call(self.path, read, body, SMALL + (1 + asked.ranked) * ROW * len(asked.ids))

    def _scores(self, asked: Scoring, content: bytes) -> np.ndarray:
        """Parses scores.

        Raises:
            ServerError: the response lacks a finite log-probability, or a needed rank, for one of the ids.
        """
        positions, scores = self.positions(content, asked.ids), []
        if len(positions) != len(asked.ids) - 1:
            raise ServerError(
                f"{self.name} sent {len(positions):,} log-probabilities for {len(asked.ids) - 1:,} tokens"
            )
        for number, (tokens, id) in enumerate(zip(positions, asked.ids[1:], strict=True), 1):
            token: Token = (tokens or {}).get(id, {"logprob": None})
            logprob, rank = token["logprob"], token.get("rank")
            if logprob is None:
                raise ServerError(
                    f"{self.name} sent no log-probability of token {id} at position {number:,}; serve the "
                    f"tokenizer's model, without prefix caching"
                )
            if not _LOWEST < logprob < _HIGHEST:
                raise ServerError(f"{self.name} sent {logprob} for token {id} at position {number:,}")
            if asked.ranked and rank is None:
                raise ServerError(f"{self.name} sent no ranks of tokens")
            scores.append((-logprob, rank == 1))
        return np.array(scores[len(scores) - asked.count :], np.float32).reshape(-1, 2).T

    def _ids(self, asked: Generating, content: bytes) -> np.ndarray:
        """Parses generated ids.

        Raises:
            ServerError: the response has no ids, or more than requested.
        """
        ids = self.generated(content)
        if ids is None or len(ids) > asked.count:
            count = "no" if ids is None else f"{len(ids):,}"
            raise ServerError(f"{self.name} sent {count} generated ids instead of at most {asked.count:,}")
        return np.array(ids, np.int64)


# --- vLLM


class _Choice(BaseModel):
    """The log-probabilities of a prompt, and those and the ids of the generated text."""

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

    It generates at least one token, so a prompt as long as its limit is refused. For such a window, the generated token
    is restricted to the window's last one, and its raw log-probability equals that of a longer prompt.
    """

    name, path, version_path, limit_option = "vLLM", "/v1/completions", "/version", "--max-model-len"

    def scoring(self, ids: Sequence[int], ranked: bool) -> Body:
        body: Body = {"model": self.model, "prompt": list(ids), "max_tokens": 1, "temperature": 0, "prompt_logprobs": 0}
        body |= {"cache_salt": uuid.uuid4().hex}  # never reuse the cached prefix of another request
        if len(ids) == self.limit:
            body |= {"prompt": list(ids[:-1]), "logprobs": 2, "allowed_token_ids": [ids[-1]], "return_token_ids": True}
        return body

    def positions(self, content: bytes, ids: Sequence[int]) -> Sequence[Position]:
        choice = _choice(content)
        positions: list[Position] = (choice.prompt or [])[1:]
        if len(ids) == self.limit:
            # Processed ones give the other tokens no probability; the own one's may round to 1 in raw ones, too.
            if any(value <= _LOWEST for tokens in choice.tops for value in (tokens or {}).values()):
                raise ServerError("vLLM sent processed log-probabilities; serve with --logprobs-mode raw_logprobs")
            for id, value in zip(choice.token_ids or [], choice.logprobs or [], strict=False):
                positions.append({id: {"logprob": value}})
        return positions

    def generating(self, ids: Sequence[int], new_tokens: int) -> Body:
        body = {"model": self.model, "prompt": list(ids), "max_tokens": new_tokens, "temperature": 0}
        return {**body, "repetition_penalty": 1.0, "return_token_ids": True}

    def generated(self, content: bytes) -> list[int] | None:
        return _choice(content).token_ids


def _choice(content: bytes) -> _Choice:
    return _Completion.model_validate_json(content, strict=True).choices[0]


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

    def scoring(self, ids: Sequence[int], ranked: bool) -> Body:
        body = {"input_ids": list(ids), "sampling_params": {"max_new_tokens": 1, "temperature": 0}}
        return {**body, "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": int(ranked)}

    def positions(self, content: bytes, ids: Sequence[int]) -> Sequence[Position]:
        answer = _Generation.model_validate_json(content, strict=True)
        positions: list[Position] = [{id: {"logprob": value}} for value, id, _ in answer.prompt]
        for position, tops in zip(positions, answer.tops or [], strict=False):
            for id, token in (position or {}).items():
                token["rank"] = (1 if tops[0][1] == id else 2) if tops else None
        return positions[1:]

    def generating(self, ids: Sequence[int], new_tokens: int) -> Body:
        sampling = {"max_new_tokens": new_tokens, "temperature": 0, "repetition_penalty": 1.0}
        return {"input_ids": list(ids), "sampling_params": sampling}

    def generated(self, content: bytes) -> list[int] | None:
        return _Generation.model_validate_json(content, strict=True).output_ids


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
        wanted: the model's name; None takes the first one, whose adapters follow it.

    Raises:
        ServerError: the server cannot be reached, or its engine cannot score prompts.
        DataError: it does not serve that model.
    """
    cards = (client.ask(Call("/v1/models", _Models.model_validate_json)) or _Models()).data
    owner = cards[0].owned_by if cards else None
    if owner == "llamacpp":
        raise ServerError(
            f"{client.url} is llama-server, which returns no log-probabilities of a prompt; measure the file with "
            "llama-perplexity -m model.gguf -f text, or with llama-cpp-python, which gives the logits of all tokens"
        )
    if owner not in _BY_OWNER:
        what = f"a server of {named(owner)}" if owner else "a server of an unknown engine"
        raise ServerError(
            f"{client.url} is {what}; only vLLM (vllm serve) and SGLang can score a prompt; or measure the checkpoint "
            f"itself: ropescale eval MODEL"
        )
    matching = [card for card in cards if wanted in (None, card.id)]
    if not matching:
        names = listed([named(card.id) for card in cards])
        raise DataError(f"{client.url} does not serve {named(str(wanted))}; it serves {names}", "served_name")
    kind, card = _BY_OWNER[owner], matching[0]
    limit = next((each.max_model_len for each in (card, *cards) if each.max_model_len is not None), None)
    answer = client.ask(Call(kind.version_path, _Version.model_validate_json)) or _Version()
    return kind(card.id, limit, answer.version or "of an unknown version")
