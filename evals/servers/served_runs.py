"""Measurements of served models: `eval`, `retrieval` and `recommend` with scores over HTTP."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ...adapters import read_configs
from ...configs.configuration import trained_in
from ...errors import DataError, RopescaleError, ServerError
from ...output.formatting import named
from ...schedules.base import length_dependent
from ...schedules.specs import Spec, spelled_out
from ..data.chats import Given
from ..data.documents import check_ids
from ..metrics.paired import short_length
from ..metrics.stored import AS_IS, ModelFacts
from ..recommending.candidates import Candidates
from ..recommending.options import RecommendOptions, objective_of
from ..recommending.recommend_run import RecommendRun, text_options
from ..retrieving.answering import pack
from ..retrieving.prompt_set import RetrievalOptions, RetrievalPrompts
from ..retrieving.prompts import Prompt
from ..retrieving.retrieval_run import RetrievalRun
from ..running.corpus import Corpus
from ..running.corpus_run import CorpusRun, Job
from ..running.options import PerplexityOptions
from ..running.progress import Notes
from ..running.runner import Task
from ..running.variants import HeldTables
from ..scoring.batches import Batch, Scored
from ..store import key_of
from .engines import Asked, Generating, Scoring
from .server import UNNAMED, Server, served_schedule

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from ..data.sources import TextSource

TOLERANCE = 0.05
"""The largest mean difference, in nats per token, that rounding explains between two scores of a text. In half
precision, rounding depends on the other requests in a batch."""


class ServedModel:
    """A model on one or several servers with distinct labels, used instead of a loaded model.

    No weights are read, because servers do not expose theirs, which may differ from the folder's.

    Args:
        path: a folder with the model's configuration, or None.
        tokenizer: the model's tokenizer, or None.

    Attributes:
        facts: the "model" part of results.json.
        protocol: the servers' engines, for the "protocol" part of results.json; without addresses.
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
            raise DataError(
                "model is neither a loaded model nor one or several Servers; load the model, or give its Server"
            )
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
        self.protocol: dict[str, object] = {"servers": {server.label: server.engine.about for server in self.servers}}
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

    def baseline(self, label: str | None) -> str:
        """Returns the label of the baseline: the requested one, else the unchanged model, else the first server.

        Raises:
            DataError: no server has the requested label.
        """
        if label is not None and label != UNNAMED:
            label = spelled_out(served_schedule(label))
        if label is not None and label not in self.labels:
            raise DataError(f"no server has the baseline {label}; choose from {', '.join(self.labels)}", "baseline")
        return label or (AS_IS if AS_IS in self.labels else self.labels[0])

    def refuse(self, longest: int, notes: Notes) -> None:
        """Checks that every server can score windows of this length with this tokenizer.

        ``notes`` receives the messages of all requests.

        Raises:
            DataError, ServerError: as for :meth:`Server.refuse`.
        """
        for server in self.servers:
            server.client.notes = notes
            server.refuse(longest, self.tokenizer)


@dataclass(frozen=True)
class ServedBatches:
    """A scorer of batches of one window, or of one prompt, with a server.

    Attributes:
        name: returns a batch's name for messages.
        asks: returns a batch's questions; the stored numbers begin with the NLL of the first one.
        packed: returns a batch's stored numbers from the answers.
    """

    server: Server
    name: Callable[[Batch], str]
    asks: Callable[[Batch], Sequence[Asked]]
    packed: Callable[[Batch, Sequence[np.ndarray]], np.ndarray]

    def score(self, batch: Batch) -> Scored:
        """Returns the numbers of one batch."""
        [(_, scored)] = self.stream([batch])
        return scored

    def stream(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, Scored]]:
        """Scores several batches at once, and yields them in order of completion.

        If a request fails, completed batches are yielded before the error is raised, and pending batches are aborted.
        """
        engine, most = self.server.engine, self.server.client.concurrency
        todo, pending = iter(batches), dict[Future[list[bytes]], tuple[Batch, Sequence[Asked]]]()
        with self.server.client.connected() as start:
            while True:
                for batch in islice(todo, most - len(pending)):
                    asked = self.asks(batch)
                    pending[start(list(map(engine.call, asked)))] = batch, asked
                if not pending:
                    return
                failure = None
                for future in wait(pending, return_when=FIRST_COMPLETED).done:
                    batch, asked = pending.pop(future)
                    try:
                        answers = list(map(engine.answer, asked, future.result()))
                    except ServerError as error:
                        failure = type(error)(f"{self.name(batch)}: {error}")
                    else:
                        yield batch, Scored(self.packed(batch, answers))
                if failure is not None:
                    raise failure

    def confirm(self, batch: Batch, before: Scored) -> None:
        """Checks that the server gives the same NLLs as before an interruption, up to rounding.

        Raises:
            ServerError: the NLLs differ.
        """
        first = self.asks(batch)[0]
        [[nll, *_]] = self.server.answers([first])
        apart = float(np.abs(nll - before.nll[: first.count]).mean())
        if apart > TOLERANCE:
            raise ServerError(
                f"{self.server.client.url} differs from the start of this run (by {apart:.3g} nats per token, and "
                f"rounding explains at most {TOLERANCE:g}): it serves another model or schedule; serve the first one "
                f"again, or start in another folder",
                "out",
            )


class ServedRun(CorpusRun):
    """A measurement of a served model.

    Raises:
        DataError, ServerError: a server cannot score the text; raised before scoring starts.
    """

    def __init__(self, model: ServedModel, corpus: Corpus, baseline: str | None, options: PerplexityOptions) -> None:
        super().__init__(corpus, options, model.baseline(baseline), model.trained)
        self.model, self.variants, self.model_facts, self.protocol = model, model.servers, model.facts, model.protocol
        model.refuse(corpus.lengths[-1], self.notes)
        if model.vocabulary is not None:
            check_ids(corpus.documents, model.vocabulary, corpus.bos)
        self.facts = self._common_facts

    def _scoring(self, tables: HeldTables, bos: int | None) -> ServedBatches:
        documents = self.corpus.documents

        def asks(batch: Batch) -> list[Scoring]:
            [feed] = batch.feeds
            ids = map(int, documents[feed.document].ids[feed.window.start : feed.window.stop])
            return [Scoring([*([] if bos is None else [bos]), *ids], feed.window.count)]

        return ServedBatches(
            cast(Server, tables.variant),
            lambda batch: named(documents[batch.feeds[0].document].name),
            asks,
            lambda batch, answers: answers[0][0],
        )

    def _check(self, first: Batch) -> None:
        """Does nothing, because a server's first response shows whether it can score."""

    def as_trained(self, length: int) -> HeldTables:
        for server in self.model.servers:
            if server.is_unscaled:
                return server.tables([length])[length]
        raise DataError("no server has the model as it is (served_as base)", "served_as")

    def _announce_run(self, jobs: Sequence[Job], compared: Sequence[Task]) -> None:
        """Tells the user if the longest windows give the losses of shorter lengths, and if a metric is skipped."""
        for server in self.model.servers:
            with suppress(RopescaleError):  # the label may lack fields of its schedule
                spec = server.asked
                if not server.is_unscaled and isinstance(spec, Spec) and length_dependent(spec.build()):
                    self.notes.tell(
                        f"note: in transformers the frequencies of {server.label} depend on the length; a server has "
                        f"one table for all lengths, so its longest windows give the losses of shorter lengths"
                    )
        if self.options.short_context and short_length(self.corpus.lengths, self.trained_length) is not None:
            self.notes.tell("the short-context cost (KL, top-1 agreement) is skipped: servers return no distributions")


class ServedRetrieval(RetrievalRun):
    """The retrieval run of a served model.

    Raises:
        DataError, ServerError: a server cannot score the prompts; raised before scoring starts.
    """

    def __init__(
        self, model: ServedModel, prompt_set: RetrievalPrompts, baseline: str | None, options: RetrievalOptions
    ) -> None:
        model.refuse(max(prompt_set.prompts), Notes.of(options.progress))
        about = (model.baseline(baseline), model.trained, model.facts, model.vocabulary)
        super().__init__(prompt_set, options, model.servers, *about)
        self.protocol = model.protocol

    def _scoring(self, tables: HeldTables, prompts: Sequence[Prompt]) -> ServedBatches:
        def prompt_of(batch: Batch) -> Prompt:
            [feed] = batch.feeds
            return prompts[feed.document]

        def asks(batch: Batch) -> list[Asked]:
            prompt = prompt_of(batch)
            asked = [Scoring(each.ids.tolist(), each.tokens, ranked=True) for each in prompt.questions]
            if prompt.generation is None:
                return [*asked]
            return [*asked, Generating(prompt.generation.ids.tolist(), prompt.new_tokens)]

        def packed(batch: Batch, answers: Sequence[np.ndarray]) -> np.ndarray:
            prompt, count = prompt_of(batch), len(prompt_of(batch).questions)
            return pack(prompt, np.concatenate(answers[:count], axis=1), *answers[count:])

        return ServedBatches(cast(Server, tables.variant), lambda batch: prompt_of(batch).name, asks, packed)


class ServedRecommendRun(RecommendRun):
    """A recommendation among served schedules, one of them the unchanged model.

    There is no race, so the full text decides. The longest windows give the losses of shorter lengths, because a server
    has one table for all lengths. The option ``path`` names the folder with the served model's configuration.

    Raises:
        DataError, ServerError: the path is missing, a server cannot score the text, or no server has the unchanged
            model; raised before scoring starts.
    """

    def __init__(
        self, model: ServedModel, documents: Iterable[Given] | Mapping[str, Iterable[Given]], target: int,
        bos: str | int, options: RecommendOptions, source: TextSource | None = None,
    ) -> None:  # fmt: skip
        if options.path is None:
            raise DataError("servers return no configuration; name the folder of the served checkpoint", "path")
        if model.trained is None:
            raise DataError(f"{Path(options.path)} does not state the trained length of its model", "tokenizer")
        scaled = [server.label for server in model.servers if not server.is_unscaled]
        if len(scaled) == len(model.servers) or not scaled:
            raise DataError(
                "a recommendation needs a server of the model as it is (served_as base), and one per schedule",
                "served_as",
            )
        self.served = model
        objective = objective_of(target, model.trained, options.short_weight)
        corpus = Corpus(documents, objective.lengths, model.tokenizer, bos, text_options(options), source)
        self._begin(corpus, objective, replace(Candidates.unchanged(scaled), served=True), options)

    def _measurement(self, corpus: Corpus, specs: Sequence[str], options: PerplexityOptions) -> ServedRun:
        return ServedRun(self.served, corpus, None, options)
