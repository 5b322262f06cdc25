"""`eval` by servers: the same windows, statistics and tables as of a loaded model, from losses that come over HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ...adapters import read_configs
from ...configs.configuration import trained_in
from ...errors import DataError, RopescaleError
from ...schedules.base import length_dependent
from ...schedules.specs import Spec
from ..data import documents as data_documents
from ..metrics.paired import short_length
from ..metrics.stored import AS_IS, ModelFacts
from ..parallel.processes import Group, World
from ..running import fingerprints
from ..running.corpus_run import CorpusRun, Job, Truncating, choose
from ..running.runner import Runner, Task, task_of
from ..running.selection import Corpus, PerplexityOptions
from ..scoring.scorer import SCORING
from ..store import Facts, Store, key_of
from .server import UNNAMED, ServedWindows, Server

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class ServedRun(CorpusRun):
    """A measurement by servers, each under a label of its own.

    Raises:
        DataError, ServerError: what a server cannot score; raised before it is asked to score anything.
    """

    def __init__(
        self,
        servers: Sequence[Server],
        corpus: Corpus,
        baseline: str | None,
        options: PerplexityOptions,
        tokenizer: PreTrainedTokenizerBase | None,
    ) -> None:
        labelled = baseline_of(servers, baseline)
        about = facts_of(servers, options.path, tokenizer)
        super().__init__(corpus, options, labelled, about.trained)
        self.variants = self.servers = servers
        self.model_facts = about.model
        for server in servers:
            server.client.notes = self.notes
            server.refuse(corpus.lengths[-1], tokenizer)
        if about.vocabulary is not None:
            data_documents.check_ids(corpus.documents, about.vocabulary, corpus.bos)
        self.facts: Facts = {
            **{name: self.model_facts[name] for name in ("weights", "config_sha256", "dtype")},
            "text": corpus.sha256,
            "tokens": fingerprints.tokens_sha256(corpus.documents),
            "bos": corpus.bos,
            "stride": options.stride,
            "scoring": SCORING,
        }

    def run(self, store: Store | None = None, group: Group | None = None) -> None:
        """Measures by every server, one after the other; what is complete is in :attr:`passes`."""
        store, group = store or Store(), group or Group(World())
        _, self._stride = self._as_before(store.last)
        runner = Runner(self.facts, store, group, self.notes, "server")
        try:
            jobs = [job for server in self.servers for job in self._jobs(server)]
            last, told = self._truncating(jobs)
            runner.take([*(self._task(job) for job in jobs), *last])
            if not self.title:
                self._announce_special()
                if runner.announce(self._about):
                    self._tell_left_out(told)
            runner.run(self._about)
        finally:
            for server in self.servers:
                server.client.close()

    @property
    def protocol(self) -> dict[str, object]:
        """The engines of the servers, for the results; not their addresses."""
        return {"servers": {each.label: each.engine.about for each in self.servers}}

    # --- planning ---

    def _jobs(self, server: Server) -> list[Job]:
        """Plans all lengths in one pass, because a server has one table for all; or one of each where windows slide."""
        tables, lengths = server.tables, self.corpus.lengths
        self._figures[tables.table_sha256] = tables.figures
        if self.options.stride is not None:
            return [Job(tables, (length,), self._plan(length)) for length in lengths]
        return [Job(tables, lengths, self._plan(lengths[-1]))]

    def _task(self, job: Job) -> Task:
        windows = ServedWindows(cast(Server, job.tables.variant), self.corpus.documents, self.corpus.bos)
        length, finish = job.lengths[-1], partial(self._finish, job)
        return task_of(self.title or f"{job.label} at {length:,}", job.plan, length, job.tables, windows, finish)

    def _truncating(self, jobs: Sequence[Job]) -> tuple[list[Task], str]:
        """Plans truncation by the server of the unchanged model, and returns what is to be said of it."""
        rest = sum(job.plan.cost.positions for job in jobs)
        stride, said = choose(self.corpus, self.trained_length, rest, self._stride)
        if stride is None or self.trained_length is None:
            return [], said
        server = next((each for each in self.servers if each.is_unscaled), None)
        if server is None:
            if asked := self.options.asks_truncation:
                raise DataError(f"{asked} is given, and {_NO_BASE}", asked, "served_as")
            return [], f"truncation is left out: {_NO_BASE}"
        self._stride = stride
        windows = ServedWindows(server, self.corpus.documents, None)
        planned = Truncating.planned(self.corpus, server.tables, self.trained_length, stride, self.batch_tokens)
        return [planned.task(windows, partial(setattr, self, "truncation"))], said

    # --- asking and saying ---

    def _tell_left_out(self, truncation: str) -> None:
        if truncation:
            self.notes.tell(truncation)
        for server in self.servers:
            if not server.is_unscaled and isinstance(server.asked, Spec) and _follows_length(server.asked):
                self.notes.tell(
                    f"note: in transformers the frequencies of {server.label} follow the length; a server has one "
                    "table for all lengths, and shorter ones are read from its longest windows"
                )
        if self.options.short_context and short_length(self.corpus.lengths, self.trained_length) is not None:
            others = "" if any(each.is_unscaled for each in self.servers) else f", and {_NO_BASE}"
            self.notes.tell(
                f"the short-context cost (KL, top-1 agreement) is left out: servers give no distributions{others}"
            )


_NO_BASE = "no server is served as the unchanged model (served_as base)"


def prepare_served(
    servers: Sequence[Server],
    corpus: Corpus,
    baseline: object,
    options: PerplexityOptions,
    tokenizer: PreTrainedTokenizerBase | None,
) -> ServedRun:
    """Prepares a measurement by servers.

    Raises:
        DataError: two of the same label, or one that nobody named among several.
    """
    return ServedRun(servers, corpus, None if baseline is None else str(baseline), options, tokenizer)


def baseline_of(servers: Sequence[Server], asked: str | None) -> str:
    """Returns the label of the baseline: what is asked for, else the unchanged model, else the first.

    Raises:
        DataError: two of the same label, one that nobody named among several, or no server has it.
    """
    labels = [each.label for each in servers]
    if len(servers) > 1 and UNNAMED in labels:
        raise DataError("there are several servers; say of each what it is served as", "served_as")
    if len(set(labels)) < len(labels):
        raise DataError("two servers are served as the same; name what tells them apart", "served_as")
    if asked is not None and asked not in labels:
        raise DataError(f"the baseline {asked} is served by no server; there are {', '.join(labels)}", "baseline")
    return asked or (AS_IS if AS_IS in labels else labels[0])


@dataclass(frozen=True)
class ServedFacts:
    """The served model: the "model" part of results.json, its trained length, its ids."""

    model: ModelFacts
    trained: int | None
    vocabulary: int | None


def facts_of(
    servers: Sequence[Server], path: str | Path | None, tokenizer: PreTrainedTokenizerBase | None
) -> ServedFacts:
    """Returns what is known of a model, by its configuration without our scaling where there is one.

    No weights are read: a server may have other ones than the folder, and says nothing of them.
    """
    try:
        config = None if path is None else read_configs(path)[0]
    except RopescaleError:  # a folder with a tokenizer alone
        config = None
    text: Any = (config or {}).get("text_config", config) or {}
    stated = text.get("vocab_size", None if tokenizer is None else len(tokenizer))
    vocabulary = stated if isinstance(stated, int) else None
    identity = key_of({"served": config or servers[0].engine.model})
    model: ModelFacts = {
        "path": str(path or servers[0].engine.model),
        "config_sha256": identity,
        "weights": identity,
        "dtype": "in the server's dtype",
        "parameters": 0,
    }
    if vocabulary is not None:
        model["vocabulary"] = vocabulary
    return ServedFacts(model, trained_in(config) if config else None, vocabulary)


def _follows_length(spec: Spec) -> bool:
    try:
        return length_dependent(spec.build())
    except (RopescaleError, AttributeError):
        return False
