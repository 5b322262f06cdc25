"""A model behind a server, which scores token ids as a loaded model does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from pydantic import BaseModel

from ...errors import DataError, ServerError
from ...output.formatting import named
from ...schedules import specs
from ..data.documents import Document
from ..metrics.stored import AS_IS
from ..running.variants import HeldTables
from ..scoring.batches import Batch, Scored
from ..store import key_of
from .client import SMALL, TIMEOUT, Client
from .engines import ROW, PromptScoring, engine_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

T = TypeVar("T")
R = TypeVar("R")

UNNAMED = "served"
"""The label of a server of which nobody said under which schedule it computes."""

TOLERANCE = 0.05
"""Nats per token, on average, by which a server may answer otherwise than before: half precision rounds with what is
computed beside it."""

TEXT = "The keeper's log, 12 June 1904: fog. Café, naïve, 東京, 🙂;\n\n\tx_1 = {'a': [3.14]}"
"""What both tokenizers are given: letters, digits, signs and spaces that tokenizers treat in different ways."""


class _Tokens(BaseModel):
    tokens: list[int]


class Server:
    """A server of vLLM or SGLang, for :func:`ropescale.evals.perplexity` in the place of a model.

    The key is that of the environment variable ``OPENAI_API_KEY``.

    Args:
        url: its address, such as ``http://localhost:8000``.
        served_as: the schedule that it computes, as it is called in the results, such as ``yarn:factor=4``; ``base`` or
            ``as-is`` for the unchanged model. None calls it ``served``.
        name: the name of the model there; None takes the first.
        concurrency: requests under way at once.
        timeout: seconds to wait for an answer.

    Raises:
        DataError, ScheduleError: no address, or no schedule.
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
        self.asked = specs.parse(AS_IS if served_as in (None, "base") else served_as)
        self.label = UNNAMED if served_as is None else specs.spelled_out(self.asked)
        self.name, self.concurrency = name, concurrency
        self.client = Client(url, timeout)

    @cached_property
    def engine(self) -> PromptScoring:
        """The engine and the model, as the server describes itself."""
        return engine_of(self.client, self.name)

    @property
    def is_unscaled(self) -> bool:
        """Whether it is served as the unchanged model."""
        return self.label == AS_IS

    def tables(self, lengths: Iterable[int]) -> dict[int, HeldTables]:
        """Returns the one table that it has at every length."""
        return dict.fromkeys(lengths, self.held)

    @cached_property
    def held(self) -> ServedTables:
        """The facts that its numbers depend on, hashed; its address is none of them."""
        engine = self.engine
        digest = key_of({"engine": engine.name, "version": engine.version, "model": engine.model,
                         "served_as": self.label})  # fmt: skip
        return ServedTables(self, None, digest, digest, {})

    def refuse(self, longest: int, tokenizer: PreTrainedTokenizerBase | None = None) -> None:
        """Refuses what this server cannot score, before anything is scored.

        Raises:
            DataError: windows beyond its limit, or another tokenizer.
            ServerError: it cannot be reached, or cannot score.
        """
        url, engine = self.client.url, self.engine
        if engine.longest is not None and longest > engine.longest:
            raise DataError(
                f"{url} takes windows of {engine.longest:,} positions, and the longest here has {longest:,}; serve it "
                f"with a larger one ({engine.limit_option}), or measure shorter lengths",
                "lengths",
            )
        if tokenizer is None:
            return
        own = tokenizer(TEXT, add_special_tokens=False, verbose=False)["input_ids"]
        body = {"model": engine.model, "prompt": TEXT, "add_special_tokens": False}
        answer = self.client.ask("/tokenize", _Tokens.model_validate_json, body)
        if answer is None:
            self.client.notes.warn(f"warning: {url} has no /tokenize; whether its tokenizer is this one is not known")
        elif answer.tokens != own:
            raise DataError(
                f"the tokenizer of {url} is another one (it gives {len(answer.tokens):,} tokens for a text that has "
                f"{len(own):,} here, or other ids); give the one of the model that is served",
                "tokenizer",
            )

    def refuse_another(self, ids: Sequence[int], before: np.ndarray) -> None:
        """Makes sure that it computes what it computed when a run began.

        Args:
            ids: of a window, which it scores again.
            before: the NLL of the last of them.

        Raises:
            ServerError: it answers otherwise.
        """
        apart = float(np.abs(self.score(ids)[-len(before) :] - before).mean())
        if apart > TOLERANCE:
            raise ServerError(
                f"{self.client.url} answers otherwise than when this run began ({apart:.3g} nats per token, and "
                f"rounding explains {TOLERANCE:g}): it serves another model or schedule; serve the first one again, or "
                "begin in another folder",
                "out",
            )

    # --- scoring ---

    def score(self, ids: Sequence[int]) -> np.ndarray:
        """Returns the NLL in nats of every id but the first, fp32.

        Raises:
            ServerError: it cannot be reached, refuses, or answers what cannot be used.
        """
        waiting = self.start(ids)
        try:
            return waiting.result()
        finally:
            waiting.cancel()

    def start(self, ids: Sequence[int]) -> Future[np.ndarray]:
        """Asks for a window, and returns what will hold its NLL."""
        return self.client.start(*self.engine.request(ids), SMALL + ROW * len(ids), partial(self.engine.nll, ids=ids))

    def start_ranked(self, ids: Sequence[int]) -> Future[tuple[np.ndarray, np.ndarray]]:
        """Asks for a window, and returns what will hold its NLL, and whether each token is the most likely one."""
        read = partial(self.engine.ranked, ids=ids)
        return self.client.start(*self.engine.request(ids, ranked=True), SMALL + 2 * ROW * len(ids), read)

    def start_generating(self, ids: Sequence[int], new_tokens: int) -> Future[np.ndarray]:
        """Asks for what greedy decoding writes after some ids, and returns what will hold its ids."""
        path, body = self.engine.continuation(ids, new_tokens)
        return self.client.start(path, body, SMALL + ROW * new_tokens, partial(self.engine.generated, most=new_tokens))


@dataclass(frozen=True)
class ServedTables(HeldTables):
    """The tables of a server, which nobody here can change or read."""

    variant: Server  # type: ignore[assignment]

    @contextmanager
    def live(self) -> Iterator[None]:
        yield

    def check(self) -> None:
        pass


def in_parallel(items: Iterable[T], start: Callable[[T], Future[R]], concurrency: int) -> Iterator[tuple[T, Future[R]]]:
    """Starts so many items at once, and yields each with its future when that is done, failed ones last."""
    todo = iter(items)
    pending: dict[Future[R], T] = {}
    try:
        while True:
            for item in islice(todo, concurrency - len(pending)):
                pending[start(item)] = item
            if not pending:
                return
            done, _ = wait(pending, return_when=FIRST_COMPLETED)
            for future in sorted(done, key=lambda each: each.exception() is not None):
                yield pending.pop(future), future
    finally:
        for future in pending:
            future.cancel()


class ServedWindows:
    """Scores the windows of documents by a server: what :class:`.executor.Executor` is for a loaded model."""

    def __init__(self, server: Server, documents: Sequence[Document], bos: int | None) -> None:
        self.server, self.documents, self.bos = server, documents, bos

    def score(self, batch: Batch) -> Scored:
        """Returns the NLL of a batch of one window."""
        [(_, scored)] = self.stream([batch])
        return scored

    def stream(self, batches: Sequence[Batch]) -> Iterator[tuple[Batch, Scored]]:
        """Asks for several batches of one window at once, and yields each when it is answered.

        What has been answered is yielded before an error is raised; what has not is given up.
        """
        for batch, future in in_parallel(batches, self._start, self.server.concurrency):
            [feed] = batch.feeds
            try:
                nll = future.result()
            except ServerError as error:
                raise ServerError(f"{named(self.documents[feed.document].name)}: {error}") from None
            yield batch, Scored(nll[len(nll) - feed.window.count :])

    def confirm(self, batch: Batch, before: Scored) -> None:
        """Makes sure that the server computes what it computed before an interruption.

        Raises:
            ServerError: it answers otherwise.
        """
        self.server.refuse_another(self._ids(batch), before.nll)

    def _start(self, batch: Batch) -> Future[np.ndarray]:
        return self.server.start(self._ids(batch))

    def _ids(self, batch: Batch) -> list[int]:
        [feed] = batch.feeds
        first = [] if self.bos is None else [self.bos]
        return [*first, *map(int, self.documents[feed.document].ids[feed.window.start : feed.window.stop])]
