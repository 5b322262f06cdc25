"""Scoring by engines over HTTP. An engine is a module beside this one, with its class as ``ENGINE``, and a line of the
registry."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, ClassVar, NotRequired

import numpy as np
from pydantic import AliasChoices, AliasPath, BaseModel, Field
from typing_extensions import TypedDict

from ...errors import DataError, ServerError
from ...output.formatting import listed, named
from ..scoring.batches import Arrays
from .client import SMALL, Call, Client, NotANumber, Send

LOWEST, _HIGHEST = -9000.0, 0.01
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


class Card(BaseModel):
    """A served model: its name and limit, and for llama.cpp its bytes and parameters."""

    id: str
    owned_by: str | None = None
    max_model_len: int | None = Field(None, validation_alias=AliasChoices("max_model_len", AliasPath("meta", "n_ctx")))
    size: int | None = Field(None, validation_alias=AliasPath("meta", "size"))
    parameters: int | None = Field(None, validation_alias=AliasPath("meta", "n_params"))


class ServerEngine(ABC):
    """A served model, and the requests that score it.

    Attributes:
        card, model: the served model and its name.
        limit: the maximum number of positions of prompt and generated text together; None if unknown.
        version: the engine's version.
        url: the server's address, for messages.
        version_path: the path of the response with the engine's version.
        limit_option: the engine's option that sets the limit.
        cost: what a scored token costs, if that is more than one of a prompt.
        concurrency: how many windows or prompts it is asked for at the same time, unless the user says otherwise.
        reserved: the number of positions within the limit that a window cannot use.
    """

    name: ClassVar[str]
    version_path: ClassVar[str]
    limit_option: str
    concurrency: ClassVar[int] = 8
    cost: ClassVar[str] = ""

    reserved: ClassVar[int] = 0

    def __init__(self, card: Card, limit: int | None, version: str, url: str) -> None:
        self.card = card
        self.model = card.id
        self.limit = limit
        self.version = version
        self.url = url

    @property
    def bits(self) -> float | None:
        """The mean number of bits of a weight; None if unknown."""
        card = self.card
        return 8 * card.size / card.parameters if card.size and card.parameters else None

    @property
    def about(self) -> str:
        """The engine and its version."""
        return f"{self.name} {self.version}"

    @property
    def longest(self) -> int | None:
        """The length of the longest window that the engine can score; None if unknown."""
        return None if self.limit is None else self.limit - self.reserved

    @abstractmethod
    async def score(self, send: Send, asked: Asked) -> Arrays:
        """Asks the server for scores or generated ids.

        Args:
            send: sends one request, and returns its response; see :class:`ropescale.evals.backends.client.Client`.

        Raises:
            ServerError: the server fails, or a response is invalid.
        """

    async def drafted(self, send: Send, asked: Generating) -> Iterable[float]:
        """Lets the server generate, and returns how many draft tokens it accepted, and of how many; (0, 0) if it does
        not say or has no draft.

        Raises:
            ServerError: the server fails, or a response is invalid.
        """
        return 0, 0

    def tokenizing(self, text: str) -> Call:
        """Returns the request for the ids of a text, without special tokens."""
        body = {"model": self.model, "prompt": text, "add_special_tokens": False}
        return Call("/tokenize", body, is_optional=True)

    def nll(self, id: int, logprob: float | None, position: int) -> float:
        """Returns a token's NLL in nats.

        Raises:
            NotANumber: the log-probability is missing or NaN.
            ServerError: it is out of range.
        """
        if logprob is None or math.isnan(logprob):
            raise NotANumber(f"{self.url} computes NaN: it sent {logprob} for token {id} at position {position:,}")
        if not LOWEST < logprob < _HIGHEST:
            raise ServerError(f"{self.url} sent {logprob} for token {id} at position {position:,}")
        return -logprob

    def generated(self, asked: Generating, ids: Sequence[int] | None) -> Arrays:
        """Returns generated ids.

        Raises:
            ServerError: they are missing or too many.
        """
        if ids is None or len(ids) > asked.count:
            count = "no" if ids is None else f"{len(ids):,}"
            raise ServerError(f"{self.url} sent {count} generated ids instead of at most {asked.count:,}")
        return {"ids": np.array(ids, np.int32)}


def scores(nll: Sequence[float], first: Sequence[bool]) -> Arrays:
    """Returns the scores of a window: the NLL of each token in nats, and whether it has rank 1."""
    return {"nll": np.array(nll, np.float32), "first": np.array(first, np.bool_)}


class PromptScoring(ServerEngine):
    """An engine that returns all log-probabilities of a prompt in one response.

    Attributes:
        path: the path of requests for scores or generated ids.
    """

    path: ClassVar[str]

    async def score(self, send: Send, asked: Asked) -> Arrays:
        tokens = asked.count if isinstance(asked, Generating) else (1 + asked.ranked) * len(asked.ids)
        return self._answer(asked, await send(Call(self.path, self.body(asked), SMALL + ROW * tokens)))

    @abstractmethod
    def body(self, asked: Asked) -> Body:
        """Returns the JSON of a request for scores or generated ids."""

    @abstractmethod
    def parts(self, content: bytes, ids: Sequence[int]) -> tuple[Sequence[Position], list[int] | None]:
        """Returns all positions of the prompt except the first, and the generated ids, from a response."""

    def _answer(self, asked: Asked, content: bytes) -> Arrays:
        """Returns the scores or generated ids from a response."""
        positions, generated = self.parts(content, asked.ids)
        if isinstance(asked, Generating):
            return self.generated(asked, generated)
        if len(positions) != len(asked.ids) - 1:
            raise ServerError(f"{self.url} sent {len(positions):,} log-probabilities for {len(asked.ids) - 1:,} tokens")
        nll = list[float]()
        first = list[bool]()
        for number, (tokens, id) in enumerate(zip(positions, asked.ids[1:], strict=True), 1):
            token = (tokens or {}).get(id)
            if token is None:
                raise ServerError(
                    f"{self.url} sent no log-probability of token {id} at position {number:,}; serve the "
                    f"tokenizer's model, without prefix caching"
                )
            nll.append(self.nll(id, token["logprob"], number))
            rank = token.get("rank")
            if asked.ranked and rank is None:
                raise ServerError(f"{self.url} sent no ranks of tokens")
            first.append(rank == 1)
        start = len(nll) - asked.count
        return scores(nll[start:], first[start:])


# --- Detecting the engine


class _Models(BaseModel):
    data: list[Card] = []


class _Version(BaseModel):
    version: str | None = Field(None, validation_alias=AliasChoices("version", "build_info"))


_MODULES: dict[str | None, str] = {
    "vllm": "vllm",
    "sglang": "sglang",
    "lmdeploy": "lmdeploy",
    "llamacpp": "llama_server",
}
"""The modules of the engines that can score, by the ``owned_by`` of their models."""


def engine_of(client: Client, wanted: str | None = None) -> ServerEngine:
    """Detects a server's engine and served model.

    Args:
        wanted: the model's name. None selects the first model, because servers list adapters after their base model.

    Raises:
        ServerError: the server cannot be reached, or its engine cannot score prompts.
        DataError: the server does not serve that model.
    """
    cards = client.ask(Call("/v1/models", is_optional=True), _Models).data
    owner = cards[0].owned_by if cards else None
    if owner not in _MODULES:
        what = f"a server of {named(owner)}" if owner else "a server of an unknown engine"
        raise ServerError(
            f"{client.url} is {what}; vLLM (vllm serve), SGLang, LMDeploy and llama-server can score a text; serve the "
            f"model with one of them, or measure the checkpoint itself: ropescale eval MODEL"
        )
    matching = [card for card in cards if wanted in (None, card.id)]
    if not matching:
        names = listed([named(card.id) for card in cards])
        raise DataError(f"{client.url} does not serve {named(str(wanted))}; it serves {names}", "served_name")
    kind: type[ServerEngine] = import_module(f".{_MODULES[owner]}", __package__).ENGINE
    card = matching[0]
    limit = next((each.max_model_len for each in (card, *cards) if each.max_model_len is not None), None)
    version = client.ask(Call(kind.version_path, is_optional=True), _Version).version
    return kind(card, limit, version or "of an unknown version", client.url)
