"""`recommend` by servers: compares served schedules by the rule for the finalists of a race."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import DataError
from ..data.chats import Given
from ..recommending.candidates import Candidates
from ..recommending.options import RecommendOptions, objective_of
from ..recommending.running import RecommendRun, text_options
from ..running.corpus import Corpus
from ..running.options import PerplexityOptions
from .running import ServedRun
from .server import ServedModel

if TYPE_CHECKING:
    from ..data.sources import TextSource


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
