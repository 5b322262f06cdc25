"""Prompt scoring by engines over HTTP: the request, and the log-probabilities in the response.

vLLM was run (0.32.0, float32, against stock transformers). SGLang is written from its source and was not run.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import chain, repeat
from typing import Annotated, ClassVar, NamedTuple, NotRequired

import numpy as np
from pydantic import (
    AliasPath,
    BaseModel,
    FailFast,
    Field,
    NonNegativeInt,
    OnErrorOmit,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from typing_extensions import TypedDict

from ...errors import DataError, ServerError
from ...output.formatting import listed, named
from .client import Client

_LOWEST, _HIGHEST = -9000.0, 0.01
"""The range of log-probabilities: vLLM writes -9999 for minus infinity, and rounding may pass zero."""

ROW = 640
"""The most response bytes per token: a number of 20 digits, an id, a rank, and the token's text."""

Request = tuple[str, dict[str, object]]
"""The path and the body of a request."""


class Row(NamedTuple):
    """A prompt token in a response; missing values are None.

    Attributes:
        is_top: whether it is the most likely one at its position.
    """

    id: int
    logprob: float | None
    is_top: bool | None = None


class PromptScoring(ABC):
    """The requests and responses of an engine. Invalid responses raise pydantic's ValidationError.

    Attributes:
        model: the served model's name.
        limit: the most positions of prompt and generated text together; None if unknown.
        version: the engine's version.
        limit_option: the engine's option to set the limit.
    """

    name: ClassVar[str]
    version_path: ClassVar[str]
    limit_option: ClassVar[str]

    def __init__(self, model: str, limit: int | None, version: str) -> None:
        self.model, self.limit, self.version = model, limit, version

    @property
    def about(self) -> str:
        """The engine and its version."""
        return f"{self.name} {self.version}"

    @property
    @abstractmethod
    def longest(self) -> int | None:
        """The most positions of a window that the engine can score."""

    @abstractmethod
    def request(self, ids: Sequence[int], ranked: bool = False) -> Request:
        """Returns the request for the log-probability of every id except the first.

        Args:
            ranked: whether to request also if each id is the most likely one.
        """

    @abstractmethod
    def rows(self, content: bytes, ids: Sequence[int]) -> list[Row]:
        """Parses every position except the first from a response to the request for these ids."""

    @abstractmethod
    def continuation(self, ids: Sequence[int], new_tokens: int) -> Request:
        """Returns the request for greedy decoding after these ids."""

    @abstractmethod
    def written(self, content: bytes) -> list[int]:
        """Parses the generated ids from a response."""

    def generated(self, content: bytes, most: int) -> np.ndarray:
        """Returns the generated ids, int64 [tokens].

        Raises:
            ServerError: the response has more ids than requested.
        """
        ids = self.written(content)
        if len(ids) > most:
            raise ServerError(f"{self.name} sent {len(ids):,} generated ids instead of at most {most:,}")
        return np.array(ids, np.int64)

    def ranked(self, content: bytes, ids: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Returns the NLL, as :meth:`nll`, and whether each token is the most likely one, bool [ids - 1].

        Raises:
            ServerError: the response has no ranks.
        """
        rows = self._checked(self.rows(content, ids), ids)
        if any(row.is_top is None for row in rows):
            raise ServerError(f"{self.name} sent no ranks of tokens")
        return _nll(rows), np.array([row.is_top for row in rows], bool)

    def nll(self, content: bytes, ids: Sequence[int]) -> np.ndarray:
        """Returns the NLL in nats of every id except the first, fp32 [ids - 1].

        Raises:
            ServerError: the response lacks a finite log-probability for one of these ids.
        """
        return _nll(self._checked(self.rows(content, ids), ids))

    def _checked(self, rows: list[Row], ids: Sequence[int]) -> list[Row]:
        if len(rows) != len(ids) - 1:
            raise ServerError(f"{self.name} sent {len(rows):,} log-probabilities for {len(ids) - 1:,} tokens")
        for position, (row, asked) in enumerate(zip(rows, ids[1:], strict=True), 1):
            if row.id != asked:
                raise ServerError(f"{self.name} scored token {row.id} at position {position:,} instead of {asked}")
            if row.logprob is None or not _LOWEST < row.logprob < _HIGHEST:
                hint = "; serve without prefix caching" if row.logprob is None else ""
                raise ServerError(f"{self.name} sent {row.logprob} for the token at position {position:,}{hint}")
        return rows


def _nll(rows: Sequence[Row]) -> np.ndarray:
    return -np.array([row.logprob for row in rows], np.float32)


def _at(first: str, *path: str | int) -> object:
    """Returns the path of a field in a response."""
    return Field(validation_alias=AliasPath(first, *path))


# --- vLLM


class _Token(TypedDict):
    logprob: float | None
    rank: NotRequired[int | None]


class _Choice(BaseModel):
    """The log-probabilities of a prompt, and of the last token of a window as long as the limit."""

    rows: Annotated[list[dict[int, _Token] | None], FailFast(), _at("prompt_logprobs")]
    last: Annotated[list[float | None] | None, _at("logprobs", "token_logprobs")] = None
    last_id: Annotated[list[int] | None, _at("token_ids")] = None


class _Prompt(BaseModel):
    choices: tuple[_Choice]


class _Written(BaseModel):
    token_ids: Annotated[list[NonNegativeInt], FailFast()]


class _Completion(BaseModel):
    choices: tuple[_Written]


class VLLM(PromptScoring):
    """vLLM's ``/v1/completions`` with ``prompt_logprobs``.

    It generates at least one token, so a prompt as long as its limit is refused. For such a window, the generated token
    is restricted to the window's last one, and its raw log-probability equals that of a longer prompt.
    """

    name, version_path, limit_option = "vLLM", "/version", "--max-model-len"

    @property
    def longest(self) -> int | None:
        return self.limit

    def request(self, ids: Sequence[int], ranked: bool = False) -> Request:
        body = {"model": self.model, "prompt": list(ids), "max_tokens": 1, "temperature": 0, "prompt_logprobs": 0}
        body |= {"cache_salt": uuid.uuid4().hex}  # never reuse the cached prefix of another request
        if len(ids) == self.limit:
            body |= {"prompt": list(ids[:-1]), "logprobs": 0, "allowed_token_ids": [ids[-1]], "return_token_ids": True}
        return "/v1/completions", body

    def rows(self, content: bytes, ids: Sequence[int]) -> list[Row]:
        [choice] = _Prompt.model_validate_json(content, strict=True).choices
        rows = [_row(found, id) for found, id in zip(choice.rows[1:], chain(ids[1:], repeat(-1)), strict=False)]
        if len(ids) == self.limit:
            last, last_id = choice.last or [], choice.last_id or []
            if len(last) != len(last_id):
                raise ServerError(f"vLLM sent {len(last_id)} ids for {len(last)} log-probabilities of the last token")
            if 0 in last:
                raise ServerError("vLLM sent processed log-probabilities; serve with --logprobs-mode raw_logprobs")
            rows += [Row(id, value) for id, value in zip(last_id, last, strict=True)]
        return rows

    def continuation(self, ids: Sequence[int], new_tokens: int) -> Request:
        body = {"model": self.model, "prompt": list(ids), "max_tokens": new_tokens, "temperature": 0}
        return "/v1/completions", {**body, "repetition_penalty": 1.0, "return_token_ids": True}

    def written(self, content: bytes) -> list[int]:
        [choice] = _Completion.model_validate_json(content, strict=True).choices
        return choice.token_ids


def _row(found: dict[int, _Token] | None, asked: int) -> Row:
    """Returns the asked token of a position; without it, the position's first one."""
    if not found:
        return Row(asked, None)
    id = asked if asked in found else next(iter(found))
    rank = found[id].get("rank")
    return Row(id, found[id]["logprob"], None if rank is None else rank == 1)


# --- SGLang

_Logprob = tuple[float | None, int, object]
"""A log-probability, the token's id and its text."""


class _Scored(BaseModel):
    rows: Annotated[list[_Logprob], FailFast(), _at("meta_info", "input_token_logprobs")]
    tops: Annotated[list[list[_Logprob] | None] | None, _at("meta_info", "input_top_logprobs")] = None


class _Generated(BaseModel):
    output_ids: Annotated[list[NonNegativeInt], FailFast()]


class SGLang(PromptScoring):
    """SGLang's ``/generate`` with ``return_logprob`` from the first position."""

    name, version_path = "SGLang", "/get_server_info"
    limit_option = "--context-length, one more than the window"

    @property
    def longest(self) -> int | None:
        return None if self.limit is None else self.limit - 1  # SGLang generates one token

    def request(self, ids: Sequence[int], ranked: bool = False) -> Request:
        body = {"input_ids": list(ids), "sampling_params": {"max_new_tokens": 1, "temperature": 0}}
        body |= {"return_logprob": True, "logprob_start_len": 0}
        return "/generate", {**body, "top_logprobs_num": 1} if ranked else body

    def rows(self, content: bytes, ids: Sequence[int]) -> list[Row]:
        answer = _Scored.model_validate_json(content, strict=True)
        tops = [top[0][1] if top else None for top in answer.tops or [None] * len(answer.rows)]
        return [
            Row(id, value, None if top is None else top == id)
            for (value, id, _), top in zip(answer.rows[1:], tops[1:], strict=False)
        ]

    def continuation(self, ids: Sequence[int], new_tokens: int) -> Request:
        sampling = {"max_new_tokens": new_tokens, "temperature": 0, "repetition_penalty": 1.0}
        return "/generate", {"input_ids": list(ids), "sampling_params": sampling}

    def written(self, content: bytes) -> list[int]:
        return _Generated.model_validate_json(content, strict=True).output_ids


# --- Detecting the engine


def _or_none(value: object, validate: ValidatorFunctionWrapHandler) -> object:
    try:
        return validate(value)
    except ValidationError:
        return None


_IfValid = WrapValidator(_or_none)
"""Replaces an invalid value of an optional field by None."""


class _Card(BaseModel):
    id: str
    owned_by: Annotated[str | None, _IfValid] = None
    max_model_len: Annotated[int | None, _IfValid] = None


class _Models(BaseModel):
    data: Annotated[list[OnErrorOmit[_Card]] | None, _IfValid] = None


class _Version(BaseModel):
    version: Annotated[str | None, _IfValid] = None


_BY_OWNER: dict[str, type[PromptScoring]] = {"vllm": VLLM, "sglang": SGLang}
"""Engines that can score, by the ``owned_by`` of their models."""


def engine_of(client: Client, wanted: str | None = None) -> PromptScoring:
    """Detects a server's engine and served model.

    Args:
        wanted: the model's name; None takes the first one, whose adapters follow it.

    Raises:
        ServerError: the server cannot be reached, or its engine cannot score prompts.
        DataError: it does not serve that model.
    """
    cards = (client.ask("/v1/models", _Models.model_validate_json) or _Models()).data or []
    owner = cards[0].owned_by if cards else None
    kind = _BY_OWNER.get(owner or "")
    if owner == "llamacpp":
        raise ServerError(
            f"{client.url} is llama-server, which returns no log-probabilities of a prompt; measure the file with "
            "llama-perplexity -m model.gguf -f text, or with llama-cpp-python, which gives the logits of all tokens"
        )
    if kind is None:
        what = f"a server of {named(owner)}" if owner else "a server of an unknown engine"
        raise ServerError(
            f"{client.url} is {what}; only vLLM (vllm serve) and SGLang can score a prompt; or measure the checkpoint "
            f"itself: ropescale eval MODEL"
        )
    found = [card for card in cards if wanted in (None, card.id)]
    if not found:
        names = listed([named(card.id) for card in cards])
        raise DataError(f"{client.url} does not serve {named(str(wanted))}; it serves {names}", "served_name")
    limits = (card.max_model_len for card in (*found, *cards))  # an adapter has its base's limit
    limit = next((each for each in limits if each is not None), None)
    answer = client.ask(kind.version_path, _Version.model_validate_json) or _Version()
    version = "of an unknown version" if answer.version is None else answer.version
    return kind(found[0].id, limit, version)
