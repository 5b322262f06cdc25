"""`retrieval` by servers: teacher-forced answers with token ranks, and greedy decoding of a file's prompts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, cast

from ...errors import ServerError
from ..metrics.stored import ModelFacts
from ..parallel.processes import Group, World
from ..retrieving.answering import AnswerTokens, scores_of
from ..retrieving.prompt_set import RetrievalOptions, RetrievalPrompts
from ..retrieving.running import ANSWERING, RetrievalRun, pack
from ..retrieving.tasks import Prompt
from ..running.runner import Facts, Runner, Task
from ..running.variants import HeldTables
from ..scoring.batches import Batch, Scored, plan_pass
from ..store import Store, key_of
from .server import ServedModel, Server, in_parallel


class ServedRetrieval(RetrievalRun):
    """A retrieval run of a served model.

    Raises:
        DataError, ServerError: a server cannot score the prompts; raised before scoring starts.
    """

    def __init__(
        self, model: ServedModel, prompt_set: RetrievalPrompts, baseline: str | None, options: RetrievalOptions
    ) -> None:
        self._begin(prompt_set, options, model.servers, model.baseline(baseline), model.trained)
        self.model, self.protocol = model, model.protocol
        model.refuse(max(prompt_set.lengths) + 1, self.notes)  # the rank of the last token needs one more position
        if model.vocabulary is not None:
            prompt_set.check_ids(model.vocabulary)

    @property
    def model_facts(self) -> ModelFacts:  # type: ignore[override]
        return self.model.facts

    @property
    def facts(self) -> Facts:  # type: ignore[override]
        known = {name: self.model.facts[name] for name in ("weights", "config_sha256", "dtype")}
        return {"kind": "retrieval", **known, "bos": self.prompt_set.bos, "answering": ANSWERING}

    def run(self, store: Store | None = None, group: Group | None = None) -> None:
        """Queries the servers in turn; :attr:`answers` has all complete ones even after an interruption."""
        store = store or Store()
        runner = Runner(self.facts, store, group or Group(World()), self.notes)
        with closing(self.model):
            lengths = self.prompt_set.lengths
            runner.take([self._task(length, each.held) for each in self.model.servers for length in lengths])
            if runner.announce(self._about):
                for server in self.model.servers:
                    self._confirm(server, store)
            runner.run(self._about)

    def _confirm(self, server: Server, store: Store) -> None:
        """Scores the longest prompt again, and compares the result with the stored one."""
        ids = self.prompt_set.every[-1].ids(0).tolist()
        facts = {**self.facts, "probe": key_of({"ids": ids}), "rotation": server.held.rotation}
        shelf = store.shelf(facts, plan_pass([len(ids)], len(ids), None, False, 1))
        if 0 in shelf.batches:
            server.refuse_another(ids, shelf.batches[0].nll)
        else:
            shelf.put(0, Scored(server.score(ids)))

    def _together(self, prompt: Prompt) -> int:
        return 1

    def _task(self, length: int, tables: HeldTables) -> Task:
        prompts = self.prompt_set.prompts[length]
        task = super()._task(length, tables)
        return replace(task, stream=partial(_answered, cast(Server, tables.variant), prompts))


def _answered(server: Server, prompts: Sequence[Prompt], batches: Sequence[Batch]) -> Iterator[tuple[Batch, Scored]]:
    """Requests all endings and continuations of the prompts concurrently; yields each prompt when it is complete."""
    asked, answered = [], dict[int, dict[int, Any]]()
    for batch in batches:
        prompt = prompts[batch.feeds[0].document]
        parts = range(-1 if prompt.generation else 0, len(prompt.endings))  # -1 stands for the generated text
        asked += [(batch, prompt, part, len(parts)) for part in parts]

    def start(each: tuple[Batch, Prompt, int, int]) -> Future[Any]:
        _, prompt, part, _ = each
        if part < 0 and prompt.generation:
            return server.start_generating(prompt.generation.ids.tolist(), prompt.generation.new_tokens)
        return server.start(prompt.ids(part).tolist(), ranked=True)

    for (batch, prompt, part, count), future in in_parallel(asked, start, server.concurrency):
        done = answered.setdefault(batch.number, {})
        try:
            done[part] = future.result()
        except ServerError as error:
            raise ServerError(f"{prompt.name}: {error}") from None
        if len(done) == count:
            written, first = done.pop(-1, ()), len(prompt.context)
            ranked = [done[ending] for ending in range(len(prompt.endings))]
            endings = [AnswerTokens(first + 1, nll[first:].astype("f8"), right[first:]) for nll, right in ranked]
            yield batch, Scored(pack(prompt, scores_of(prompt, endings), written), count)
