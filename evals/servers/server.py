"""A model behind a server, which scores token ids as a loaded model does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import cached_property, partial
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from ...errors import DataError, ServerError
from ...output.formatting import named
from ...schedules import specs
from ..data.documents import Document
from ..metrics.stored import AS_IS
from ..scoring.batches import Batch, Scored
from .client import SMALL, TIMEOUT, Client
from .engines import ROW, Served, served_by

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

T = TypeVar("T")
R = TypeVar("R")

UNNAMED = "served"
"""The label of a server of which nobody said under which schedule it computes."""

TEXT = "The keeper's log, 12 June 1904: fog. Café, naïve, 東京, 🙂;\n\n\tx_1 = {'a': [3.14]}"
"""What both tokenizers are given: letters, digits, signs and spaces that tokenizers treat in different ways."""


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
    def served(self) -> Served:
        """The engine and the model, as the server describes itself."""
        return served_by(self.client, self.name)

    @property
    def is_unscaled(self) -> bool:
        """Whether it is served as the unchanged model."""
        return self.label == AS_IS

    def refuse(self, longest: int, tokenizer: PreTrainedTokenizerBase | None = None) -> None:
        """Refuses what this server cannot score, before anything is scored.

        Raises:
            DataError: windows beyond its limit, or another tokenizer.
            ServerError: it cannot be reached, or cannot score.
        """
        engine = self.served.engine
        if engine.longest is not None and longest > engine.longest:
            raise DataError(
                f"{self.client.url} takes windows of {engine.longest:,} positions, and the longest here has "
                f"{longest:,}; serve it with a larger one ({_LIMITS[engine.name]}), or measure shorter lengths",
                "lengths",
            )
        if tokenizer is not None:
            self._compare(tokenizer)

    def _compare(self, tokenizer: PreTrainedTokenizerBase) -> None:
        own = tokenizer(TEXT, add_special_tokens=False, verbose=False)["input_ids"]
        body = {"model": self.served.engine.model, "prompt": TEXT, "add_special_tokens": False}
        there = self.client.ask("/tokenize", body, missing=True).get("tokens")
        if there is None:
            self.client.notes.warn(
                f"warning: {self.client.url} has no /tokenize; whether its tokenizer is this one is not known"
            )
        elif there != own:
            raise DataError(
                f"the tokenizer of {self.client.url} is another one (it gives {len(there):,} tokens for a text that "
                f"has {len(own):,} here, or other ids); give the one of the model that is served",
                "tokenizer",
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
        engine = self.served.engine
        path, body = engine.request(ids)
        return self.client.start(path, body, SMALL + ROW * len(ids), partial(engine.nll, ids=ids))

    def start_ranked(self, ids: Sequence[int]) -> Future[tuple[np.ndarray, np.ndarray]]:
        """Asks for a window, and returns what will hold its NLL, and whether each token is the most likely one."""
        engine = self.served.engine
        path, body = engine.request(ids, ranked=True)
        return self.client.start(path, body, SMALL + 2 * ROW * len(ids), partial(engine.ranked, ids=ids))

    def start_generating(self, ids: Sequence[int], new_tokens: int) -> Future[np.ndarray]:
        """Asks for what greedy decoding writes after some ids, and returns what will hold its ids."""
        engine = self.served.engine
        path, body = engine.continuation(ids, new_tokens)
        return self.client.start(path, body, SMALL + ROW * new_tokens, partial(engine.generated, most=new_tokens))


_LIMITS = {"vLLM": "--max-model-len", "SGLang": "--context-length, one more than the window"}


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
        for batch, future in in_parallel(
            batches, lambda each: self.server.start(self.ids(each)), self.server.concurrency
        ):
            yield batch, self._scored(batch, future)

    def ids(self, batch: Batch) -> list[int]:
        """Returns the ids of its window."""
        [feed] = batch.feeds
        first = [] if self.bos is None else [self.bos]
        return [*first, *map(int, self.documents[feed.document].ids[feed.window.start : feed.window.stop])]

    def _scored(self, batch: Batch, future: Future[np.ndarray]) -> Scored:
        [feed] = batch.feeds
        try:
            nll = future.result()
        except ServerError as error:
            raise ServerError(f"{named(self.documents[feed.document].name)}: {error}") from None
        return Scored(nll[len(nll) - feed.window.count :])
