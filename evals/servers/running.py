"""`eval` by servers: the windows, statistics and tables of a loaded model, from losses over HTTP."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ...adapters import read_configs
from ...configs.configuration import trained_in
from ...errors import DataError, RopescaleError
from ...schedules.base import length_dependent
from ...schedules.specs import Spec
from ..data import documents as data_documents
from ..data.sources import TextSource
from ..data.windows import check_lengths, check_stride
from ..metrics.paired import short_length
from ..metrics.stored import AS_IS, ModelFacts
from ..running import fingerprints
from ..running.checkpoint import Checkpoint
from ..running.corpus import Corpus
from ..running.corpus_run import CorpusRun, Job
from ..running.options import PerplexityOptions
from ..running.runner import Task
from ..running.variants import HeldTables
from ..scoring.batches import Batch
from ..scoring.scorer import SCORING
from ..store import Facts, key_of
from .server import UNNAMED, ServedTables, ServedWindows, Server

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class ServedRun(CorpusRun):
    """A measurement of one or several servers with distinct labels.

    Raises:
        DataError, ServerError: a server cannot score the text; raised before scoring starts.
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

    @property
    def protocol(self) -> dict[str, object]:
        """The servers' engines for the results, without addresses."""
        return {"servers": {each.label: each.engine.about for each in self.servers}}

    @contextmanager
    def _ready(self) -> Iterator[None]:
        """Closes the connections at the end."""
        try:
            yield
        finally:
            for server in self.servers:
                server.client.close()

    def _scoring(self, tables: HeldTables, bos: int | None) -> ServedWindows:
        return ServedWindows(cast(ServedTables, tables).variant, self.corpus.documents, bos)

    def as_trained(self, length: int) -> HeldTables:
        for server in self.servers:
            if server.is_unscaled:
                return server.held
        raise DataError(_NO_BASE, "served_as")

    def _check(self, first: Batch) -> None:
        """Does nothing, because a server's first response shows whether it can score."""

    def _announce_run(self, jobs: Sequence[Job], compared: Sequence[Task]) -> None:
        """Notes shorter lengths read from the longest windows, and metrics that servers leave out."""
        for server in self.servers:
            if not server.is_unscaled and isinstance(server.asked, Spec) and _follows_length(server.asked):
                self.notes.tell(
                    f"note: in transformers the frequencies of {server.label} follow the length; a server has one "
                    f"table for all lengths, so its longest windows give the losses of shorter ones"
                )
        if self.options.short_context and short_length(self.corpus.lengths, self.trained_length) is not None:
            others = "" if any(each.is_unscaled for each in self.servers) else f", and {_NO_BASE}"
            self.notes.tell(
                f"the short-context cost (KL, top-1 agreement) is left out: servers return no distributions{others}"
            )


_NO_BASE = "no server has the unchanged model (served_as base)"


def prepare_served(
    servers: Sequence[Server],
    checkpoint: Checkpoint,
    baseline: str | None,
    source: TextSource,
    lengths: Sequence[int],
    bos: str | int,
    options: PerplexityOptions,
) -> ServedRun:
    """Prepares a measurement by servers.

    Args:
        checkpoint: the served model's checkpoint, for its tokenizer and configuration; no weights are read.

    Raises:
        RopescaleError: a file cannot be read, or a server cannot be measured.
    """
    lengths = check_lengths(lengths)
    source.refuse_endless(options.max_docs)
    check_stride(options.stride, lengths)
    texts, tokenizer = source.texts(), checkpoint.tokenizer()
    corpus = Corpus(texts, lengths, tokenizer, bos, options, source)
    return ServedRun(servers, corpus, baseline, options, tokenizer)


def baseline_of(servers: Sequence[Server], asked: str | None) -> str:
    """Returns the label of the baseline: the requested one, else the unchanged model, else the first server.

    Raises:
        DataError: two servers share a label, one of several has no label, or no server has the baseline.
    """
    labels = [each.label for each in servers]
    if len(servers) > 1 and UNNAMED in labels:
        raise DataError("several servers need labels; give served_as for every server", "served_as")
    if len(set(labels)) < len(labels):
        raise DataError("two servers have the same label; give distinct labels", "served_as")
    if asked is not None and asked not in labels:
        raise DataError(f"no server has the baseline {asked}; choose from {', '.join(labels)}", "baseline")
    return asked or (AS_IS if AS_IS in labels else labels[0])


@dataclass(frozen=True)
class ServedFacts:
    """The served model: the "model" part of results.json, its trained length, its token ids."""

    model: ModelFacts
    trained: int | None
    vocabulary: int | None


def facts_of(
    servers: Sequence[Server], path: str | os.PathLike[str] | None, tokenizer: PreTrainedTokenizerBase | None
) -> ServedFacts:
    """Returns facts about a model from its configuration, if any, without ropescale's scaling.

    Reads no weights: the server's may differ from the folder's, and are not exposed.
    """
    folder = None if path is None else Path(path)
    try:
        config = None if folder is None else read_configs(folder)[0]
    except RopescaleError:  # a folder with only a tokenizer
        config = None
    text: Any = (config or {}).get("text_config", config) or {}
    stated = text.get("vocab_size", None if tokenizer is None else len(tokenizer))
    vocabulary = stated if isinstance(stated, int) else None
    identity = key_of({"served": config or servers[0].engine.model})
    model: ModelFacts = {
        "path": str(folder or servers[0].engine.model),
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
