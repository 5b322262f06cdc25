"""A served model, which scores token ids like a loaded one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel

from ...adapters import read_configs
from ...configs.configuration import trained_in
from ...errors import DataError, RopescaleError, ServerError
from ...schedules import specs
from ..metrics.stored import AS_IS, ModelFacts
from ..running.progress import Notes
from ..running.variants import HeldTables
from ..scoring.batches import Batch, Scored
from ..store import key_of
from .client import TIMEOUT, Call, Client
from .engines import Generating, PromptScoring, Scoring, engine_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

UNNAMED = "served"
"""The label of a server with an unnamed schedule."""

TOLERANCE = 0.05
"""The mean difference in nats per token between two scores of a text: in half precision, rounding depends on the other
requests of a batch."""

TEXT = "The keeper's log, 12 June 1904: fog. Café, naïve, 東京, 🙂;\n\n\tx_1 = {'a': [3.14]}"
"""The text to compare tokenizers on: letters, digits, signs and spaces that they encode differently."""


class _Tokens(BaseModel):
    tokens: list[int] | None = None


class Server:
    """A server of vLLM or SGLang, for :func:`ropescale.evals.perplexity` instead of a model.

    The API key comes from the environment variable ``OPENAI_API_KEY``.

    Args:
        url: the server's address, such as ``http://localhost:8000``.
        served_as: the served schedule's name in the results, such as ``yarn:factor=4``; ``base`` or ``as-is`` for the
            unchanged model. Default: ``served``.
        name: the served model's name. Default: the first model.
        concurrency: the number of concurrent requests.
        timeout: seconds to wait for a response.

    Raises:
        DataError, ScheduleError: the address or the schedule is invalid.
    """

    def __init__(
        self,
        url: str,
        served_as: str | None = None,
        *,
        name: str | None = None,
        concurrency: int = 8,
        timeout: float = TIMEOUT,
    ) -> None:
        if concurrency < 1 or timeout <= 0:
            raise DataError("concurrency and timeout must be above 0", "concurrency", "timeout")
        self.asked = served_schedule(served_as or AS_IS)
        self.label = UNNAMED if served_as is None else specs.spelled_out(self.asked)
        self.name, self.client = name, Client(url, timeout, concurrency)

    @cached_property
    def engine(self) -> PromptScoring:
        """The engine and the model that the server reports."""
        return engine_of(self.client, self.name)

    @property
    def is_unscaled(self) -> bool:
        """Whether the server has the unchanged model."""
        return self.label == AS_IS

    @property
    def rotation(self) -> str:
        """A hash of the facts that determine the server's numbers, without its address."""
        engine = self.engine
        known = {"engine": engine.name, "version": engine.version, "model": engine.model, "served_as": self.label}
        return key_of(known)

    def applied(self, length: int | None = None) -> AbstractContextManager[None]:
        """Does nothing, because a server has its schedule from its start."""
        return nullcontext()

    def tables(self, lengths: Iterable[int]) -> dict[int, HeldTables]:
        """Returns the server's single table for every length."""
        return dict.fromkeys(lengths, HeldTables(self, None, self.rotation, self.rotation, {}))

    def refuse(self, longest: int, tokenizer: PreTrainedTokenizerBase | None = None) -> None:
        """Refuses windows or a tokenizer that this server cannot score with, before scoring starts.

        Raises:
            DataError: windows exceed its limit, or the tokenizer differs.
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
        body = {"model": engine.model, "prompt": TEXT, "add_special_tokens": False}
        answer = self.client.ask(Call("/tokenize", _Tokens.model_validate_json, body))
        if answer is None or answer.tokens is None:
            self.client.notes.warn(f"warning: {url} has no /tokenize, so its tokenizer cannot be checked")
        elif answer.tokens != own:
            raise DataError(
                f"the tokenizer of {url} differs (it returns {len(answer.tokens):,} tokens for a text that has "
                f"{len(own):,} here, or other ids); give the served model's tokenizer",
                "tokenizer",
            )

    def start(self, asked: Sequence[Scoring | Generating]) -> Future[list[np.ndarray]]:
        """Requests scores or generated ids; returns a future of all answers."""
        return self.client.start([self.engine.request(each) for each in asked])

    def score(self, ids: Sequence[int]) -> np.ndarray:
        """Returns the NLL in nats of every id except the first, fp32.

        Raises:
            ServerError: the server cannot be reached, refuses, or sends an invalid response.
        """
        return self.start([Scoring(ids, len(ids) - 1)]).result()[0][0]


class ServedModel:
    """A model on one or several servers with distinct labels, in the place of a loaded model.

    It reads no weights: the server's may differ from the folder's, and are not exposed.

    Args:
        path: a folder with the model's configuration, if any.
        tokenizer: the model's, if known.

    Attributes:
        facts: the "model" part of results.json.
        trained: the trained length, without ropescale's scaling; None if unknown.
        vocabulary: the number of token ids; None if unknown.

    Raises:
        DataError: two servers share a label, or one of several has no label.
    """

    def __init__(
        self,
        servers: Server | Sequence[Server],
        path: str | os.PathLike[str] | None,
        tokenizer: PreTrainedTokenizerBase | None,
    ) -> None:
        self.servers, self.tokenizer = [servers] if isinstance(servers, Server) else servers, tokenizer
        if not self.servers or not all(isinstance(server, Server) for server in self.servers):
            raise DataError("model is neither a loaded model nor a Server or several; load it, or name its Server")
        self.labels = [server.label for server in self.servers]
        if len(self.labels) > 1 and UNNAMED in self.labels:
            raise DataError("several servers need labels; give served_as for every server", "served_as")
        if len(set(self.labels)) < len(self.labels):
            raise DataError("two servers have the same label; give distinct labels", "served_as")
        config: dict[str, Any] = {}
        if path is not None:
            with suppress(RopescaleError):  # a folder with only a tokenizer
                config = read_configs(Path(path))[0]
        stated = (config.get("text_config") or config).get("vocab_size", None if tokenizer is None else len(tokenizer))
        self.vocabulary = stated if isinstance(stated, int) else None
        self.trained = trained_in(config) if config else None
        name = self.servers[0].engine.model
        identity = key_of({"served": config or name})
        self.facts: ModelFacts = {
            "path": name if path is None else str(Path(path)),
            "config_sha256": identity,
            "weights": identity,
            "dtype": "in the server's dtype",
            "parameters": 0,
        }
        if self.vocabulary is not None:
            self.facts["vocabulary"] = self.vocabulary

    @property
    def protocol(self) -> dict[str, object]:
        """The servers' engines for the results, without addresses."""
        return {"servers": {server.label: server.engine.about for server in self.servers}}

    @property
    def unscaled(self) -> Server:
        """The server of the unchanged model.

        Raises:
            DataError: there is none.
        """
        for server in self.servers:
            if server.is_unscaled:
                return server
        raise DataError("no server has the unchanged model (served_as base)", "served_as")

    def baseline(self, label: str | None) -> str:
        """Returns the label of the baseline: the requested one, else the unchanged model, else the first server.

        Raises:
            DataError: no server has the requested one.
        """
        if label is not None and label != UNNAMED:
            label = specs.spelled_out(served_schedule(label))
        if label is not None and label not in self.labels:
            raise DataError(f"no server has the baseline {label}; choose from {', '.join(self.labels)}", "baseline")
        return label or (AS_IS if AS_IS in self.labels else self.labels[0])

    def refuse(self, longest: int, notes: Notes) -> None:
        """Refuses windows or a tokenizer that a server cannot score with; ``notes`` receives all messages of requests.

        Raises:
            DataError, ServerError: as for :meth:`Server.refuse`.
        """
        for server in self.servers:
            server.client.notes = notes
            server.refuse(longest, self.tokenizer)

    def close(self) -> None:
        """Closes the connections."""
        for server in self.servers:
            server.client.close()


def served_schedule(name: str) -> specs.ParsedSpec:
    """Parses the name of a served schedule; ``base`` is the unchanged model, as ``as-is`` is."""
    return specs.parse(AS_IS if name == "base" else name)


class ServedBatches:
    """Scores batches of one window, or of one prompt, by a server.

    Args:
        name: returns a batch's name for messages.
        asks: returns a batch's questions; the stored numbers begin with the NLL of the first one.
        packed: returns a batch's stored numbers from the answers.
    """

    def __init__(
        self,
        server: Server,
        name: Callable[[Batch], str],
        asks: Callable[[Batch], Sequence[Scoring | Generating]],
        packed: Callable[[Batch, Sequence[np.ndarray]], np.ndarray],
    ) -> None:
        self.server, self.name, self.asks, self.packed = server, name, asks, packed

    def score(self, batch: Batch) -> Scored:
        """Returns the numbers of one batch."""
        [(_, scored)] = self.stream([batch])
        return scored

    def stream(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, Scored]]:
        """Scores several batches at once; yields them in order of completion.

        Yields completed batches before it raises an error, and aborts pending ones.
        """
        todo, pending = iter(batches), dict[Future[list[np.ndarray]], Batch]()
        try:
            while True:
                for batch in islice(todo, self.server.client.concurrency - len(pending)):
                    pending[self.server.start(self.asks(batch))] = batch
                if not pending:
                    return
                done, _ = wait(pending, return_when=FIRST_COMPLETED)
                for future in sorted(done, key=lambda future: future.exception() is not None):
                    batch = pending.pop(future)
                    try:
                        answers = future.result()
                    except ServerError as error:
                        raise ServerError(f"{self.name(batch)}: {error}") from None
                    yield batch, Scored(self.packed(batch, answers))
        finally:
            for future in pending:
                future.cancel()

    def confirm(self, batch: Batch, before: Scored) -> None:
        """Checks that the server's numbers match those before an interruption.

        Raises:
            ServerError: the NLL differs.
        """
        first = self.asks(batch)[0]
        [nll, *_], *_ = self.server.start([first]).result()
        apart = float(np.abs(nll - before.nll[: first.count]).mean())
        if apart > TOLERANCE:
            raise ServerError(
                f"{self.server.client.url} differs from the start of this run ({apart:.3g} nats per token, and "
                f"rounding explains {TOLERANCE:g}): it serves another model or schedule; serve the first one again, "
                f"or start in another folder",
                "out",
            )
