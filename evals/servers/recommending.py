"""`recommend` by servers: compares served schedules by the rule for the finalists of a race."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from transformers import AutoConfig

from ...adapters import read_configs
from ...configs.configuration import trained_in
from ...errors import DataError
from ..data.chats import Given
from ..recommending.candidates import Candidates
from ..recommending.deployment import serving_dtype
from ..recommending.options import Objective, RecommendOptions, objective_of
from ..recommending.running import RecommendRun, text_options
from ..running.corpus import Corpus
from ..running.options import PerplexityOptions
from .running import ServedRun, baseline_of
from .server import Server

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

    from ..data.sources import TextSource


class ServedRecommendRun(RecommendRun):
    """A recommendation among served schedules, one of them the unchanged model.

    There is no race, so the full text decides. The longest windows give the losses of shorter lengths, because a server
    has one table for all lengths.

    Raises:
        DataError, ServerError: a server cannot score the text, or none has the unchanged model; raised before scoring
            starts.
    """

    def __init__(
        self,
        servers: Sequence[Server],
        corpus: Corpus,
        objective: Objective,
        options: RecommendOptions,
        tokenizer: PreTrainedTokenizerBase | None,
    ) -> None:
        baseline_of(servers, None)  # refuses equal labels
        others = [server for server in servers if not server.is_unscaled]
        if len(others) == len(servers) or not others:
            raise DataError(
                "a recommendation needs a server of the unchanged model (served_as base), and one per schedule",
                "served_as",
            )
        self.servers, self.tokenizer = servers, tokenizer
        candidates = Candidates.unchanged([server.label for server in others])
        self._begin(corpus, objective, dataclasses.replace(candidates, served=True), options)

    def _measurement(self, corpus: Corpus, specs: Sequence[str], options: PerplexityOptions) -> ServedRun:
        return ServedRun(self.servers, corpus, None, options, self.tokenizer)

    def _weights(self) -> tuple[PreTrainedConfig, str, int]:
        config = AutoConfig.from_pretrained(Path(cast(str, self.options.path)))  # None is refused below
        return config.get_text_config(), serving_dtype(config.to_dict(), "bfloat16"), 0


def prepare_recommendation(
    servers: Sequence[Server],
    documents: Iterable[Given] | Mapping[str, Iterable[Given]],
    target: int,
    bos: str | int,
    options: RecommendOptions,
    tokenizer: PreTrainedTokenizerBase | None,
    source: TextSource | None = None,
) -> ServedRecommendRun:
    """Prepares a recommendation by servers; the options' ``path`` has the served model's configuration.

    Raises:
        DataError: the path is missing, or the servers cannot be measured.
    """
    if options.path is None:
        raise DataError("servers return no configuration; name the folder of the served checkpoint", "path")
    path = Path(options.path)
    trained = trained_in(read_configs(path)[0])
    if trained is None:
        raise DataError(f"{path} does not state the trained length of its model", "tokenizer")
    objective = objective_of(target, trained, options.short_weight, options.lengths)
    corpus = Corpus(documents, objective.lengths, tokenizer, bos, text_options(options), source)
    return ServedRecommendRun(servers, corpus, objective, options, tokenizer)
