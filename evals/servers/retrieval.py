"""`retrieval` by servers: the answers in place, whether each of their tokens is the most likely one there, and what
greedy decoding writes after a prompt from a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ...errors import ServerError
from ..metrics.stored import ModelFacts
from ..parallel.processes import Group, World
from ..retrieving.answering import AnswerTokens, scores_of
from ..retrieving.prompt_set import PromptCollection, RetrievalOptions
from ..retrieving.running import ANSWERING, RetrievalRun, pack
from ..retrieving.tasks import Prompt
from ..running.runner import Facts, Runner, Task
from ..running.variants import HeldTables
from ..scoring.batches import Batch, Scored, plan_pass
from ..store import Store, key_of
from .running import baseline_of, facts_of
from .server import Server, in_parallel

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class ServedRetrieval(RetrievalRun):
    """A retrieval run by servers, each under a label of its own.

    Raises:
        DataError, ServerError: what a server cannot score; raised before it is asked.
    """

    def __init__(
        self,
        servers: Sequence[Server],
        prompt_set: PromptCollection,
        baseline: str | None,
        options: RetrievalOptions,
        tokenizer: PreTrainedTokenizerBase,
    ) -> None:
        about = facts_of(servers, options.path, tokenizer)
        self._begin(prompt_set, options, servers, baseline_of(servers, baseline), about.trained)
        self.servers, self._facts = servers, about.model
        for server in servers:
            server.client.notes = self.notes
            server.refuse(max(prompt_set.lengths) + 1, tokenizer)  # the rank of the last token needs one more
        if about.vocabulary is not None:
            prompt_set.check_ids(about.vocabulary)
        self.protocol = {"servers": {each.label: each.engine.about for each in servers}}

    @property
    def model_facts(self) -> ModelFacts:  # type: ignore[override]
        return self._facts

    @property
    def facts(self) -> Facts:  # type: ignore[override]
        known = {name: self._facts[name] for name in ("weights", "config_sha256", "dtype")}
        return {"kind": "retrieval", **known, "bos": self.prompt_set.bos, "answering": ANSWERING}

    def run(self, store: Store | None = None, group: Group | None = None) -> None:
        """Asks every server, one after the other; :attr:`answers` has the complete ones even after an interruption."""
        store = store or Store()
        runner = Runner(self.facts, store, group or Group(World()), self.notes, "server")
        try:
            lengths = self.prompt_set.lengths
            runner.take([self._task(length, each.tables) for each in self.servers for length in lengths])
            if runner.announce(self._about):
                for server in self.servers:
                    self._confirm(server, store)
            runner.run(self._about)
        finally:
            for server in self.servers:
                server.client.close()

    def _confirm(self, server: Server, store: Store) -> None:
        """Scores the longest prompt again, and compares it with what the store keeps of it."""
        ids = self.prompt_set.every[-1].ids(0).tolist()
        facts = {**self.facts, "probe": key_of({"ids": ids}), "rotation": server.tables.rotation}
        shelf = store.shelf(facts, plan_pass([len(ids)], len(ids), None, False, 1))
        if 0 in shelf.batches:
            server.refuse_another(ids, shelf.batches[0].nll)
        else:
            shelf.put(0, Scored(server.score(ids)))

    def _together(self, prompts: Sequence[Prompt]) -> int:
        return 1

    def _task(self, length: int, tables: HeldTables) -> Task:
        prompts = self.prompt_set.prompts[length]
        task = super()._task(length, tables)
        return replace(task, stream=partial(_answered, cast(Server, tables.variant), prompts))


def _answered(server: Server, prompts: Sequence[Prompt], batches: Sequence[Batch]) -> Iterator[tuple[Batch, Scored]]:
    """Asks for every ending of every prompt and for what follows it, several at once; yields a prompt when all of it is
    answered."""
    found: dict[int, dict[int, AnswerTokens]] = {batch.number: {} for batch in batches}
    written: dict[int, np.ndarray] = {}

    def prompt_of(batch: Batch) -> Prompt:
        return prompts[batch.feeds[0].document]

    def parts(prompt: Prompt) -> range:
        """Numbers what is asked of a prompt: its endings, and -1 for what is generated."""
        return range(-1 if prompt.generation else 0, len(prompt.endings))

    def start(each: tuple[Batch, int]) -> Future[Any]:
        prompt, part = prompt_of(each[0]), each[1]
        if part < 0 and prompt.generation:
            return server.start_generating(prompt.generation.ids.tolist(), prompt.generation.new_tokens)
        return server.start_ranked(prompt.ids(part).tolist())

    asked = [(batch, part) for batch in batches for part in parts(prompt_of(batch))]
    for (batch, part), future in in_parallel(asked, start, server.concurrency):
        prompt, done = prompt_of(batch), found[batch.number]
        try:
            answer = future.result()
        except ServerError as error:
            raise ServerError(f"{prompt.name}: {error}") from None
        if part < 0:
            written[batch.number] = answer
        else:
            (nll, right), first = answer, len(prompt.context) + 1
            done[part] = AnswerTokens(first, nll[first - 1 :].astype("f8"), right[first - 1 :])
        if len(done) + (batch.number in written) == len(parts(prompt)):
            scores = scores_of(prompt, [tokens for _, tokens in sorted(done.items())])
            yield batch, Scored(pack(prompt, scores, written.get(batch.number)), len(parts(prompt)))
