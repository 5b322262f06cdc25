"""`recommend` by servers: what they serve is compared by the rule that decides among the finalists of a race."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, cast

from transformers import AutoConfig

from ...adapters import read_configs
from ...configs.configuration import trained_in
from ...errors import DataError
from ..data import documents as data_documents
from ..data.chats import Given
from ..data.documents import Document
from ..metrics.stored import AS_IS, ModelFacts
from ..recommending.candidates import Candidates
from ..recommending.deployment import Deployment, cache_of, serving_dtype
from ..recommending.options import Objective, RecommendOptions, objective_of
from ..recommending.race import Round
from ..recommending.running import RecommendRun, text_options
from ..running import fingerprints
from ..running.corpus_run import Truncating, choose
from ..running.runner import Runner
from ..running.selection import Corpus
from ..running.variants import HeldPass, HeldTables
from ..scoring.batches import Batch
from ..scoring.scorer import SCORING
from ..store import Facts
from .running import baseline_of, facts_of
from .server import ServedWindows, Server

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class ServedRecommendRun(RecommendRun):
    """A recommendation among schedules that servers compute, one of them the unchanged model.

    Nothing races, so all of the text decides. Shorter lengths are read from the longest windows, because a server has
    one table for all lengths.

    Raises:
        DataError, ServerError: what a server cannot score, or none serves the unchanged model; raised before one is
            asked to score.
    """

    def __init__(
        self,
        servers: Sequence[Server],
        corpus: Corpus,
        objective: Objective,
        options: RecommendOptions,
        tokenizer: PreTrainedTokenizerBase | None,
    ) -> None:
        baseline_of(servers, None)  # labels that cannot be told apart
        others = [each for each in servers if not each.is_unscaled]
        if len(others) == len(servers) or not others:
            raise DataError(
                "a recommendation takes a server of the unchanged model (served_as base), and one of each schedule",
                "served_as",
            )
        candidates = dataclasses.replace(Candidates.unchanged([each.label for each in others]), served=True)
        self._begin(corpus, objective, candidates, options)
        self.race = []
        unscaled = next(each for each in servers if each.is_unscaled)
        self.servers = dict(zip(candidates.specs, [unscaled, *others], strict=True))
        about = facts_of(servers, options.path, tokenizer)
        self._model, self.vocabulary, self.batch_tokens = about.model, about.vocabulary, 1
        for server in servers:
            server.client.notes = self.notes
            server.refuse(objective.target, tokenizer)
        if about.vocabulary is not None:
            data_documents.check_ids(corpus.documents, about.vocabulary, corpus.bos)

    @property
    def model_facts(self) -> ModelFacts:  # type: ignore[override]
        return self._model

    @cached_property
    def facts(self) -> Facts:
        return {
            "kind": "recommendation by servers",
            **{name: self._model[name] for name in ("weights", "config_sha256", "dtype")},
            "scoring": SCORING,
            "text": self.corpus.sha256,
            "tokens": fingerprints.tokens_sha256(self.corpus.documents),
            "bos": self.corpus.bos,
        }

    def _ready(self) -> AbstractContextManager[object]:
        return nullcontext()

    def _run_race(self) -> list[Round]:
        return []

    def _passes_of(self, spec: str) -> list[HeldPass]:
        return [HeldPass(self.servers[spec].tables, self.objective.lengths)]

    def _scoring(self, tables: HeldTables, documents: Sequence[Document], bos: int | None) -> ServedWindows:
        return ServedWindows(cast(Server, tables.variant), documents, bos)

    def _runner(self) -> Runner:
        return Runner(self.facts, self._store, self._group, self.notes, "server")

    def _check(self, first: Batch, part: Corpus) -> None:
        """Nothing: the runner compares an answer of before with one of now."""

    @cached_property
    def _truncation_plan(self) -> tuple[Truncating | None, str]:
        rest = len(self.servers) * len(self.held_out) * self.objective.target
        trained, part = self.objective.trained, self._part(self.held_out)
        stride, said = choose(part, trained, rest)
        if stride is None or trained != self.objective.short:
            return None, said
        return Truncating.planned(part, self.servers[AS_IS].tables, trained, stride, 1), said

    def _deployment(self) -> Deployment:
        config = AutoConfig.from_pretrained(cast("str | Path", self.options.path))  # None is refused below
        dtype = serving_dtype(config.to_dict(), "bfloat16")
        return Deployment(
            model=self.options.name or self._model["path"],
            revision=self.options.revision,
            request=self.options.patching,
            cache=cache_of(config.get_text_config(), dtype),
            weights=0,
            memory=None,
            engine=self.options.engine,
        )


def prepare_recommendation(
    servers: Sequence[Server],
    documents: Iterable[Given] | Mapping[str, Iterable[Given]],
    target: int,
    bos: str | int,
    options: RecommendOptions,
    tokenizer: PreTrainedTokenizerBase | None,
) -> ServedRecommendRun:
    """Prepares a recommendation by servers; ``path`` of the options has the configuration of what they serve.

    Raises:
        DataError: no path, or what cannot be measured.
    """
    if options.path is None:
        raise DataError("servers give no configuration; name the folder of the checkpoint that they serve", "path")
    trained = trained_in(read_configs(options.path)[0])
    if trained is None:
        raise DataError(f"{options.path} does not say how long its model was trained at", "tokenizer")
    objective = objective_of(target, trained, options.short_weight, options.lengths)
    corpus = Corpus(documents, objective.lengths, tokenizer, bos, text_options(options))
    return ServedRecommendRun(servers, corpus, objective, options, tokenizer)
