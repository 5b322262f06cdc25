"""A server that scores token ids with one model under one schedule, used like a variant of a loaded model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial
from typing import TYPE_CHECKING

from pydantic import AliasChoices, BaseModel, Field

from ...errors import DataError
from ...schedules import specs
from ..facts import AS_IS
from ..scoring.batches import Arrays
from ..store import key_of
from .client import TIMEOUT, Client, Start
from .engines import Asked, ServerEngine, engine_of
from .schedules import HeldTables

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

UNNAMED = "served"
"""The label of a server with an unnamed schedule."""

TEXT = "The keeper's log, 12 June 1904: fog. Café, naïve, 東京, 🙂;\n\n\tx_1 = {'a': [3.14]}"
"""A text for comparing tokenizers, with letters, digits, symbols and spaces that different tokenizers encode
differently."""


class _Tokens(BaseModel):
    tokens: list[int] | None = Field(None, validation_alias=AliasChoices("tokens", "input_ids"))


class Server:
    """A server of an engine, which :func:`ropescale.evals.perplexity` takes instead of a model.

    The API key comes from the environment variable ``OPENAI_API_KEY``.

    Args:
        url: the server's address, such as ``http://localhost:8000``.
        served_as: the served schedule's name in the results, such as ``yarn:factor=4``; ``base`` or ``as-is`` for the
            unchanged model. Default: ``served``.
        name: the served model's name. Default: the first model.
        concurrency: the number of windows or prompts to ask for at the same time. Default: the engine's.
        timeout: seconds to wait for a response.

    Attributes:
        is_unscaled: whether the server serves the unchanged model.

    Raises:
        DataError, ScheduleError: the address or the schedule is invalid.
    """

    def __init__(
        self,
        url: str,
        served_as: str | None = None,
        *,
        name: str | None = None,
        concurrency: int | None = None,
        timeout: float = TIMEOUT,
    ) -> None:
        if timeout <= 0 or (concurrency is not None and concurrency < 1):
            raise DataError("concurrency and timeout must be above 0", "concurrency", "timeout")
        self.asked = served_schedule(served_as or AS_IS)
        self.label = UNNAMED if served_as is None else specs.spelled_out(self.asked)
        self.is_unscaled = self.label == AS_IS
        self.name, self.client, self._concurrency = name, Client(url, timeout), concurrency

    @cached_property
    def engine(self) -> ServerEngine:
        """The engine that the server reports, with the served model."""
        return engine_of(self.client, self.name)

    @property
    def concurrency(self) -> int:
        """The number of windows or prompts to ask for at the same time."""
        return self._concurrency or self.engine.concurrency

    @property
    def rotation(self) -> str:
        """A hash of the facts that determine the server's numbers, without its address."""
        engine = self.engine
        known = {"engine": engine.name, "version": engine.version, "model": engine.model, "bytes": engine.card.size}
        return key_of({**known, "served_as": self.label})

    def applied(self, length: int | None = None) -> AbstractContextManager[None]:
        """Does nothing, because a server's schedule is fixed when the server starts."""
        return nullcontext()

    def tables(self, lengths: Iterable[int]) -> dict[int, HeldTables]:
        """Returns the server's single table for every length."""
        return dict.fromkeys(lengths, HeldTables(self, None, self.rotation, self.rotation, {}))

    def refuse(self, longest: int, tokenizer: PreTrainedTokenizerBase | None = None) -> None:
        """Checks, before scoring starts, that the server can score windows of this length with this tokenizer.

        Raises:
            DataError: the longest window exceeds the server's limit, or the server's tokenizer differs.
            ServerError: the server cannot be reached, or cannot score.
        """
        url, engine = self.client.url, self.engine
        if engine.longest is not None and longest > engine.longest:
            raise DataError(
                f"{url} takes at most {engine.longest:,} positions, and the longest window has {longest:,}; raise "
                f"its limit ({engine.limit_option}), or measure shorter lengths",
                "lengths",
            )
        if tokenizer is None:
            return
        own = tokenizer(TEXT, add_special_tokens=False, verbose=False)["input_ids"]
        call = engine.tokenizing(TEXT)
        tokens = self.client.ask(call, _Tokens).tokens
        if tokens is None:
            self.client.notes.warn(f"warning: {url} has no {call.path}, so its tokenizer cannot be checked")
        elif tokens != own:
            raise DataError(
                f"the tokenizer of {url} differs (it returns {len(tokens):,} tokens for a text that has "
                f"{len(own):,} here, or different ids); give the served model's tokenizer",
                "tokenizer",
            )

    def answers(self, asked: Sequence[Asked]) -> list[Arrays]:
        """Returns scores or generated ids.

        Raises:
            ServerError: the server cannot be reached, rejects a request, or sends an invalid response.
        """
        with self.client.connected(self.concurrency) as start:
            return self.begun(start, asked).result()

    def begun(self, start: Start, asked: Sequence[Asked]) -> Future[list[Arrays]]:
        """Starts asking for scores or generated ids, and returns their future."""
        return start([partial(self.engine.score, asked=each) for each in asked])


def served_schedule(name: str) -> specs.ParsedSpec:
    """Parses the name of a served schedule. Both ``base`` and ``as-is`` name the unchanged model."""
    return specs.parse(AS_IS if name == "base" else name)
