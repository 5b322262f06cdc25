"""Measurements of served models: `eval`, `retrieval` and `recommend` with scores over HTTP."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from ...errors import DataError, RopescaleError
from ...output.formatting import named
from ...schedules.base import length_dependent
from ...schedules.specs import Spec
from ..data.chats import Given
from ..data.documents import check_ids
from ..metrics.paired import short_length
from ..recommending.candidates import Candidates
from ..recommending.options import RecommendOptions, objective_of
from ..recommending.running import RecommendRun, text_options
from ..retrieving.answering import pack
from ..retrieving.prompt_set import RetrievalOptions, RetrievalPrompts
from ..retrieving.running import AskedModel, RetrievalRun
from ..retrieving.tasks import Prompt
from ..running import fingerprints
from ..running.corpus import Corpus
from ..running.corpus_run import CorpusRun, Job
from ..running.options import PerplexityOptions
from ..running.progress import Notes
from ..running.runner import Task
from ..running.variants import HeldTables
from ..scoring.batches import Batch
from ..scoring.scorer import SCORING
from ..store import Facts
from .engines import Generating, Scoring
from .server import ServedBatches, ServedModel, Server

if TYPE_CHECKING:
    from ..data.sources import TextSource


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

    def as_trained(self, length: int) -> HeldTables:
        return self.model.unscaled.tables([length])[length]

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


def served_retrieval(
    model: ServedModel, prompt_set: RetrievalPrompts, baseline: str | None, options: RetrievalOptions
) -> RetrievalRun:
    """Returns the retrieval run of a served model.

    Raises:
        DataError, ServerError: a server cannot score the prompts; raised before scoring starts.
    """

    def scoring(tables: HeldTables, prompts: Sequence[Prompt]) -> ServedBatches:
        def prompt_of(batch: Batch) -> Prompt:
            [feed] = batch.feeds
            return prompts[feed.document]

        def asks(batch: Batch) -> list[Scoring | Generating]:
            prompt = prompt_of(batch)
            scored = [Scoring(prompt.ids(number).tolist(), question.tokens, ranked=True)
                      for number, question in enumerate(prompt.questions)]  # fmt: skip
            if prompt.generation is None:
                return [*scored]
            return [*scored, Generating(prompt.generation.ids.tolist(), prompt.new_tokens)]

        def packed(batch: Batch, answers: Sequence[np.ndarray]) -> np.ndarray:
            prompt = prompt_of(batch)
            count = len(prompt.questions)
            return pack(prompt, np.concatenate(answers[:count], axis=1), *answers[count:])

        return ServedBatches(cast(Server, tables.variant), lambda batch: prompt_of(batch).name, asks, packed)

    # The rank of the last token needs one more position.
    model.refuse(max(prompt_set.prompts) + 1, Notes.of(options.progress))
    asked = AskedModel(
        variants=model.servers,
        baseline=model.baseline(baseline),
        trained_length=model.trained,
        about=model.facts,
        ready=partial(closing, model),
        scoring=scoring,
        vocabulary=model.vocabulary,
        protocol=model.protocol,
    )
    return RetrievalRun(asked, prompt_set, options)


class ServedRecommendRun(RecommendRun):
    """A recommendation among served schedules, one of them the unchanged model.

    There is no race, so the full text decides. The longest windows give the losses of shorter lengths, because a server
    has one table for all lengths. The options' ``path`` has the served model's configuration.

    Raises:
        DataError, ServerError: the path is missing, a server cannot score the text, or none has the unchanged model;
            raised before scoring starts.
    """

    def __init__(
        self,
        model: ServedModel,
        documents: Iterable[Given] | Mapping[str, Iterable[Given]],
        target: int,
        bos: str | int,
        options: RecommendOptions,
        source: TextSource | None = None,
    ) -> None:
        if options.path is None:
            raise DataError("servers return no configuration; name the folder of the served checkpoint", "path")
        if model.trained is None:
            raise DataError(f"{Path(options.path)} does not state the trained length of its model", "tokenizer")
        scaled = [server.label for server in model.servers if not server.is_unscaled]
        if len(scaled) == len(model.servers) or not scaled:
            raise DataError(
                "a recommendation needs a server of the unchanged model (served_as base), and one per schedule",
                "served_as",
            )
        self.served = model
        objective = objective_of(target, model.trained, options.short_weight)
        corpus = Corpus(documents, objective.lengths, model.tokenizer, bos, text_options(options), source)
        self._begin(corpus, objective, replace(Candidates.unchanged(scaled), served=True), options)

    def _measurement(self, corpus: Corpus, specs: Sequence[str], options: PerplexityOptions) -> ServedRun:
        return ServedRun(self.served, corpus, None, options)
