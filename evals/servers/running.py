"""`eval` by servers: the windows, statistics and tables of a loaded model, from losses over HTTP."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, closing, suppress
from typing import cast

from ...errors import RopescaleError, ServerError
from ...output.formatting import named
from ...schedules.base import length_dependent
from ...schedules.specs import Spec
from ..data.documents import Document, check_ids
from ..data.sources import TextSource
from ..metrics.paired import short_length
from ..running import fingerprints
from ..running.checkpoint import Checkpoint
from ..running.corpus import Corpus
from ..running.corpus_run import CorpusRun, Job
from ..running.options import PerplexityOptions
from ..running.runner import Task
from ..running.variants import HeldTables
from ..scoring.batches import Batch, Scored
from ..scoring.scorer import SCORING
from ..store import Facts
from .engines import Scores
from .server import ServedModel, ServedTables, Server, in_parallel


class ServedWindows:
    """Scores documents' windows by a server, as :class:`.executor.Executor` does for a loaded model."""

    def __init__(self, server: Server, documents: Sequence[Document], bos: int | None) -> None:
        self.server, self.documents, self.bos = server, documents, bos

    def score(self, batch: Batch) -> Scored:
        """Returns the NLL of a batch of one window."""
        [(_, scored)] = self.stream([batch])
        return scored

    def stream(self, batches: Sequence[Batch]) -> Iterator[tuple[Batch, Scored]]:
        """Requests several one-window batches at once; yields them in order of completion.

        Yields completed batches before it raises an error, and aborts pending ones.
        """
        for batch, future in in_parallel(batches, self._start, self.server.concurrency):
            [feed] = batch.feeds
            try:
                nll, _ = future.result()
            except ServerError as error:
                raise ServerError(f"{named(self.documents[feed.document].name)}: {error}") from None
            yield batch, Scored(nll[len(nll) - feed.window.count :])

    def confirm(self, batch: Batch, before: Scored) -> None:
        """Checks that the server's numbers match those before an interruption.

        Raises:
            ServerError: the NLL differs.
        """
        self.server.refuse_another(self._ids(batch), before.nll)

    def _start(self, batch: Batch) -> Future[Scores]:
        return self.server.start(self._ids(batch))

    def _ids(self, batch: Batch) -> list[int]:
        [feed] = batch.feeds
        ids = self.documents[feed.document].ids[feed.window.start : feed.window.stop]
        return [*([] if self.bos is None else [self.bos]), *map(int, ids)]


class ServedRun(CorpusRun):
    """A measurement of a served model.

    Raises:
        DataError, ServerError: a server cannot score the text; raised before scoring starts.
    """

    def __init__(self, model: ServedModel, corpus: Corpus, baseline: str | None, options: PerplexityOptions) -> None:
        super().__init__(corpus, options, model.baseline(baseline), model.trained)
        self.model, self.variants, self.model_facts = model, model.servers, model.facts
        model.refuse(corpus.lengths[-1], self.notes)
        if model.vocabulary is not None:
            check_ids(corpus.documents, model.vocabulary, corpus.bos)
        self.facts: Facts = {
            **{name: model.facts[name] for name in ("weights", "config_sha256", "dtype")},
            "text": corpus.sha256,
            "tokens": fingerprints.tokens_sha256(corpus.documents),
            "bos": corpus.bos,
            "stride": options.stride,
            "scoring": SCORING,
        }

    @property
    def protocol(self) -> dict[str, object]:
        return self.model.protocol

    def _ready(self) -> AbstractContextManager[object]:
        return closing(self.model)

    def _scoring(self, tables: HeldTables, bos: int | None) -> ServedWindows:
        return ServedWindows(cast(ServedTables, tables).variant, self.corpus.documents, bos)

    def as_trained(self, length: int) -> HeldTables:
        return self.model.unscaled.held

    def _check(self, first: Batch) -> None:
        """Does nothing, because a server's first response shows whether it can score."""

    def _announce_run(self, jobs: Sequence[Job], compared: Sequence[Task]) -> None:
        """Notes shorter lengths read from the longest windows, and metrics that servers leave out."""
        for server in self.model.servers:
            with suppress(RopescaleError):  # a label without the fields of its schedule
                spec = server.asked
                if not server.is_unscaled and isinstance(spec, Spec) and length_dependent(spec.build()):
                    self.notes.tell(
                        f"note: in transformers the frequencies of {server.label} follow the length; a server has one "
                        f"table for all lengths, so its longest windows give the losses of shorter ones"
                    )
        if self.options.short_context and short_length(self.corpus.lengths, self.trained_length) is not None:
            self.notes.tell("the short-context cost (KL, top-1 agreement) is left out: servers return no distributions")


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
    source.refuse_endless(options.max_docs)
    tokenizer = checkpoint.tokenizer()
    corpus = Corpus(source.texts(), lengths, tokenizer, bos, options, source)
    return ServedRun(ServedModel(servers, checkpoint, tokenizer), corpus, baseline, options)
