"""`retrieval` by servers: teacher-forced answers with token ranks, and greedy decoding of a file's prompts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, closing
from typing import Any, cast

from ...errors import ServerError
from ..retrieving.answering import pack
from ..retrieving.prompt_set import RetrievalOptions, RetrievalPrompts
from ..retrieving.running import RetrievalRun, answer_facts
from ..retrieving.tasks import Prompt
from ..running.variants import HeldTables
from ..scoring.batches import Batch, Scored
from .server import ServedModel, ServedTables, Server, in_parallel

GENERATED = -1
"""The number that stands for the generated text among the questions of a prompt."""


class ServedPrompts:
    """Scores prompts by a server, as :class:`.answering.PromptBatches` does with a loaded model."""

    def __init__(self, server: Server, prompts: Sequence[Prompt]) -> None:
        self.server, self.prompts = server, prompts

    def score(self, batch: Batch) -> Scored:
        """Returns the packed scores of a batch of one prompt."""
        [(_, scored)] = self.stream([batch])
        return scored

    def stream(self, batches: Sequence[Batch]) -> Iterator[tuple[Batch, Scored]]:
        """Requests all questions and generated texts concurrently; yields each prompt when it is complete."""
        requests, complete = [], dict[int, dict[int, Any]]()
        for batch in batches:
            prompt = self._prompt(batch)
            first = GENERATED if prompt.generation else 0
            requests += [(batch, number) for number in range(first, len(prompt.questions))]
        for (batch, number), future in in_parallel(requests, self._start, self.server.concurrency):
            prompt, responses = self._prompt(batch), complete.setdefault(batch.number, {})
            try:
                responses[number] = future.result()
            except ServerError as error:
                raise ServerError(f"{prompt.name}: {error}") from None
            if len(responses) == len(prompt.questions) + bool(prompt.generation):
                written = responses.pop(GENERATED, ())
                scores = [
                    (responses[number][0][-question.tokens :], responses[number][1][-question.tokens :])
                    for number, question in enumerate(prompt.questions)
                ]
                yield batch, Scored(pack(prompt, scores, written))

    def confirm(self, batch: Batch, before: Scored) -> None:
        """Checks that the server's numbers match those before an interruption.

        Raises:
            ServerError: the NLL differs.
        """
        prompt = self._prompt(batch)
        self.server.refuse_another(prompt.ids().tolist(), before.nll[: prompt.questions[0].tokens])

    def _start(self, request: tuple[Batch, int]) -> Future[Any]:
        batch, number = request
        prompt = self._prompt(batch)
        if number == GENERATED and prompt.generation:
            return self.server.start_generating(prompt.generation.ids.tolist(), prompt.generation.new_tokens)
        return self.server.start(prompt.ids(number).tolist(), ranked=True)

    def _prompt(self, batch: Batch) -> Prompt:
        [feed] = batch.feeds
        return self.prompts[feed.document]


class ServedRetrieval(RetrievalRun):
    """A retrieval run of a served model.

    Raises:
        DataError, ServerError: a server cannot score the prompts; raised before scoring starts.
    """

    def __init__(
        self, model: ServedModel, prompt_set: RetrievalPrompts, baseline: str | None, options: RetrievalOptions
    ) -> None:
        super().__init__(prompt_set, options, model.servers, model.baseline(baseline), model.trained)
        self.model, self.model_facts, self.protocol = model, model.facts, model.protocol
        self.facts = answer_facts(model.facts, prompt_set)
        # The rank of the last token needs one more position.
        model.refuse(max(prompt_set.prompts) + 1, self.notes)
        if model.vocabulary is not None:
            prompt_set.check_ids(model.vocabulary)

    def _ready(self) -> AbstractContextManager[object]:
        return closing(self.model)

    def _scoring(self, tables: HeldTables, prompts: Sequence[Prompt]) -> ServedPrompts:
        return ServedPrompts(cast(ServedTables, tables).variant, prompts)
