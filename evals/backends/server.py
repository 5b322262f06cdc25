"""Servers that score token ids. Each has one model under one schedule, and is used like a variant of a loaded model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AbstractContextManager, nullcontext, suppress
from copy import copy
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from pydantic import AliasChoices, BaseModel, Field

from ...adapters import read_configs
from ...configs.configuration import trained_in
from ...errors import DataError, RopescaleError, ServerError
from ...files import AnyPath
from ...output.formatting import named
from ...schedules import specs
from ...schedules.base import length_dependent
from ..data.documents import Document
from ..data.prompts import Prompt, joined
from ..facts import AS_IS, ModelFacts
from ..progress import Notes
from ..scoring.batches import Arrays, Batch, Feed, ScoresBatches, ScoresTexts
from ..store import key_of
from .base import Backend
from .client import TIMEOUT, Client, Start
from .engines import Asked, Generating, Scoring, ServerEngine, engine_of
from .schedules import HeldTables, Schedules

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TOLERANCE = 0.05
"""The largest mean difference, in nats per token, that rounding explains between two scores of a text. In half
precision, rounding depends on the other requests in a batch."""


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
        self.name = name
        self.client = Client(url, timeout)
        self._concurrency = concurrency

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
        url = self.client.url
        engine = self.engine
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


# --- The backend ---


class ServedModel(Backend):
    """A model on one or several servers with distinct labels, used instead of a loaded model.

    No weights are read, because servers do not expose theirs, which may differ from the folder's.

    Args:
        path: a folder with the model's configuration, or None.
        tokenizer: the model's tokenizer, or None.

    Raises:
        DataError: two servers share a label, or one of several has no label.
    """

    def __init__(
        self, servers: Sequence[Server], path: AnyPath | None, tokenizer: PreTrainedTokenizerBase | None
    ) -> None:
        self.tokenizer = tokenizer
        names = [server.label for server in servers]
        self.servers = []
        for server in servers:
            own = server
            if names.count(server.label) > 1 and server.label != UNNAMED:  # its engine tells it from the others
                engine = server.engine
                own = copy(server)
                own.label += f" ({engine.name}, {engine.model})"
            self.servers.append(own)
        self.labels = [server.label for server in self.servers]
        if len(self.labels) > 1 and len({*self.labels} - {UNNAMED}) < len(self.labels):
            raise DataError("several servers need distinct labels; give served_as for every server", "served_as")
        config: dict[str, Any] = {}
        if path is not None:
            with suppress(RopescaleError):  # a folder with only a tokenizer
                config = read_configs(Path(path))[0]
        stated = (config.get("text_config") or config).get("vocab_size", None if tokenizer is None else len(tokenizer))
        self.vocabulary = stated if isinstance(stated, int) else None
        self.trained = trained_in(config) if config else None
        self.protocol = {"servers": {server.label: server.engine.about for server in self.servers}}
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
        self.arithmetic = {}

    def variants(self, schedules: Schedules, notes: Notes) -> tuple[Sequence[Server], str]:
        """Returns the servers, and the label of the baseline: the requested one, else the unchanged model, else the
        first server. The servers' labels are the schedules.

        Raises:
            DataError: no server has the requested label.
        """
        label = None if schedules.baseline is None else str(schedules.baseline)
        if label is not None and label not in self.labels:
            label = specs.spelled_out(served_schedule(label))
            if label not in self.labels:
                raise DataError(f"no server has the baseline {label}; choose from {', '.join(self.labels)}", "baseline")
        return self.servers, label or (AS_IS if AS_IS in self.labels else self.labels[0])

    def as_trained(self, length: int) -> HeldTables:
        for server in self.servers:
            if server.is_unscaled:
                return server.tables([length])[length]
        raise DataError("no server has the model as it is (served_as base)", "served_as")

    def texts(self, documents: Sequence[Document], bos: int | None, notes: Notes) -> ServedTexts:
        return ServedTexts(documents, bos)

    def answers(self, prompts: Sequence[Prompt], tables: HeldTables) -> ServedBatches:
        def asking(batch: Batch[int]) -> Asking:
            [prompt] = (prompts[number] for number in batch.feeds)
            asked: list[Asked] = [Scoring(each.ids.tolist(), each.tokens, ranked=True) for each in prompt.questions]
            if prompt.generation:
                asked.append(Generating(prompt.generation.ids.tolist(), prompt.new_tokens))

            def arrays(answers: Sequence[Arrays]) -> Arrays:
                scores = [(each["nll"], each["first"]) for each in answers if "nll" in each]
                return joined([prompt], scores, [each["ids"] for each in answers if "ids" in each])

            return Asking(prompt.name, asked, arrays)

        return ServedBatches(cast(Server, tables.variant), asking)

    def limits(self, compared: bool) -> list[str]:
        found = []
        for server in self.servers:
            with suppress(RopescaleError):  # the label may lack fields of its schedule
                spec = server.asked
                if not server.is_unscaled and isinstance(spec, specs.Spec) and length_dependent(spec.build()):
                    found.append(
                        f"note: in transformers the frequencies of {server.label} depend on the length; a server has "
                        f"one table for all lengths, so its longest windows give the losses of shorter lengths"
                    )
        if compared:
            found.append("the short-context cost (KL, top-1 agreement) is skipped: servers return no distributions")
        return found

    def tell_cost(self, tokens: int, notes: Notes) -> None:
        for cost in sorted({server.engine.cost for server in self.servers} - {""}):
            notes.tell(f"up to {tokens:,} tokens to score: {cost}")

    def refuse(self, longest: int, notes: Notes) -> None:
        """Checks that every server can score windows of this length with this tokenizer.

        ``notes`` receives the messages of all requests.

        Raises:
            DataError, ServerError: as for :meth:`Server.refuse`.
        """
        for server in self.servers:
            server.client.report_to(notes)
            server.refuse(longest, self.tokenizer)


@dataclass(frozen=True)
class Asking:
    """The request for a batch that a server scores.

    Attributes:
        name: the batch's name for messages.
        asked: the questions; the batch's "nll" begins with that of the first one.
        arrays: returns the batch's numbers from the answers.
    """

    name: str
    asked: Sequence[Asked]
    arrays: Callable[[Sequence[Arrays]], Arrays]


@dataclass(frozen=True)
class ServedBatches(ScoresBatches):
    """A scorer of batches of one window, or of one prompt, with a server; ``asking`` returns what it is asked."""

    server: Server
    asking: Callable[[Batch], Asking]

    def score(self, batch: Batch) -> Arrays:
        """Returns the numbers of one batch."""
        [(_, scored)] = self.stream([batch])
        return scored

    def stream(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, Arrays]]:
        """Scores several batches at once, and yields them in order of completion.

        If a request fails, completed batches are yielded before the error is raised, and pending batches are aborted.
        """
        most = self.server.concurrency
        todo = iter(batches)
        pending = dict[Future[list[Arrays]], tuple[Batch, Asking]]()
        with self.server.client.connected(most) as start:
            while True:
                for batch in islice(todo, most - len(pending)):
                    asking = self.asking(batch)
                    pending[self.server.begun(start, asking.asked)] = batch, asking
                if not pending:
                    return
                failure = None
                for future in wait(pending, return_when=FIRST_COMPLETED).done:
                    batch, asking = pending.pop(future)
                    try:
                        answers = future.result()
                    except ServerError as error:
                        failure = type(error)(f"{asking.name}: {error}")
                    else:
                        yield batch, asking.arrays(answers)
                if failure is not None:
                    raise failure

    def confirm(self, batch: Batch, before: Arrays) -> None:
        """Checks that the server gives the same NLLs as before an interruption, up to rounding.

        Raises:
            ServerError: the NLLs differ.
        """
        first = self.asking(batch).asked[0]
        [answer] = self.server.answers([first])
        apart = float(np.abs(answer["nll"] - before["nll"][: first.count]).mean())
        if apart > TOLERANCE:
            raise ServerError(
                f"{self.server.client.url} differs from the start of this run (by {apart:.3g} nats per token, and "
                f"rounding explains at most {TOLERANCE:g}): it serves another model or schedule; serve the first one "
                f"again, or start in another folder",
                "out",
            )


@dataclass(frozen=True)
class ServedTexts(ScoresTexts):
    """A scorer of documents on servers, one window per batch."""

    documents: Sequence[Document]
    bos: int | None

    def under(self, tables: object) -> ServedBatches:
        """Returns the scorer on the server that has these tables."""

        def asking(batch: Batch[Feed]) -> Asking:
            [feed] = batch.feeds
            document = self.documents[feed.document]
            ids = [] if self.bos is None else [self.bos]
            ids += map(int, document.ids[feed.window.start : feed.window.stop])
            asked = [Scoring(ids, feed.window.count)]
            return Asking(named(document.name), asked, lambda answers: {"nll": answers[0]["nll"]})

        return ServedBatches(cast(Server, cast(HeldTables, tables).variant), asking)
