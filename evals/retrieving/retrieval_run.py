"""Runs the same prompts with every schedule: schedules x lengths x prompts."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from ..backends import fingerprints
from ..backends.base import Backend
from ..backends.schedules import Schedules, names_for
from ..checking import Parsed
from ..data.prompts import Prompt
from ..facts import Key, ModelFacts
from ..parallel.processes import Group
from ..running.runner import Facts, Job, Runner, Task, task_of
from ..scoring.batches import Batch, BatchPlan, Finished, Form
from ..statistics.intervals import PERCENT
from ..store import Store
from .prompt_set import RetrievalOptions, RetrievalPrompts, prompts_sha256
from .results import Answer, Retrieval, share_found

ANSWERING = 3
"""The version of answering. It is increased when the same model and prompts would give different answers, so that
stored answers of earlier versions are not used."""


class RetrievalRun:
    """An interruptible retrieval run: :meth:`result` has the complete schedules and lengths.

    Attributes:
        variants: the labelled schedules.
        baseline: the label of the baseline.
        facts: the facts that every answer depends on.
        batch_tokens: the maximum number of positions fed together; at least one prompt is fed.

    Raises:
        DataError: a prompt has ids that are not in the model's vocabulary, or a server cannot score the prompts.
    """

    def __init__(
        self, backend: Backend, prompt_set: RetrievalPrompts, schedules: Schedules, options: RetrievalOptions
    ) -> None:
        self.backend = backend
        self.prompt_set = prompt_set
        self.options = options
        self.notes = options.notes
        backend.refuse(max(prompt_set.prompts), self.notes)
        self.variants, self.baseline = backend.variants(schedules, self.notes)
        self.model_facts: ModelFacts = {**backend.facts, "trained_length": backend.trained}
        if backend.vocabulary is not None:
            prompt_set.check_ids(backend.vocabulary)
        kind = {"kind": "retrieval", "bos": prompt_set.bos, "answering": ANSWERING}
        self.facts: Facts = {**kind, **backend.identity, **backend.arithmetic}
        self.batch_tokens = options.batch_tokens if backend.batches else 1
        self.answers: list[Answer] = []
        self.tables: dict[Key, str] = {}

    @property
    def finished(self) -> str:
        """The number of completed parts, as text; "" if there is none."""
        return f"{len(self.tables)} finished parts" if self.tables else ""

    def run(self, store: Store, group: Group) -> None:
        """Asks all prompts under every schedule. :attr:`answers` contains all complete parts, even if the run is
        interrupted.

        Args:
            store: the store of finished batches, which are not asked again.
            group: the processes that share the prompts; :attr:`answers` is complete only in the first one.
        """
        prompts = self.prompt_set.prompts
        asked = {"lengths": list(prompts), **self.prompt_set.protocol, "source": self.prompt_set.source}
        about = {"kind": "retrieval", "facts": self.facts, "batch_tokens": self.options.batch_tokens, **asked}
        runner = Runner(self.facts, store, group, self.notes)
        plans = {length: plan_prompts(of_length, self.batch_tokens) for length, of_length in prompts.items()}
        with self.backend.ready():
            held = [variant.tables(prompts) for variant in self.variants]
            jobs = [Job(tables, (length,), plans[length]) for each in held for length, tables in each.items()]
            runner.take([self._task(job) for job in jobs])
            if runner.announce(about):
                self.backend.tell_cost(runner.tokens_left, self.notes)
            runner.run(about)

    def planned(self) -> Parsed:
        """Returns the part of results.json that is known before the run."""
        cells = itertools.product(self.variants, self.prompt_set.prompts)
        rows = [{"schedule": variant.label, "length": length} for variant, length in cells]
        known = self.result()
        return {"model": known.model, "data": known.data, "protocol": known.protocol, "rows": rows}

    def result(self) -> Retrieval:
        """Returns the result of all complete parts."""
        return Retrieval(
            model=self.model_facts,
            data=self.prompt_set.data,
            protocol={
                "name": "retrieval",
                **self.prompt_set.protocol,
                "has_bos": self.prompt_set.bos is not None,
                **names_for(self.variants),
                **self.backend.protocol,
                "interval": f"Wilson {PERCENT}; answer NLL: t over prompts, {PERCENT}",
                "batch_tokens": self.options.batch_tokens,
            },
            versions=fingerprints.versions(),
            answers=list(self.answers),
            tables=dict(self.tables),
            baseline=self.baseline,
        )

    def _task(self, job: Job) -> Task:
        [length] = job.lengths
        prompts = self.prompt_set.prompts[length]

        def form(batch: Batch[int]) -> Form:
            tokens = (sum(prompts[number].answer_tokens for number in batch.feeds),)
            ids = len(batch.feeds), prompts[batch.feeds[0]].new_tokens
            return {"nll": (np.float32, tokens), "first": (np.bool_, tokens), "ids": (np.int32, ids)}

        def finish(finished: Finished) -> None:
            decode = self.prompt_set.tokenizer.decode
            answers: dict[int, Answer] = {}
            for batch in job.plan.batches:
                arrays = finished[batch.number]
                start = 0
                for number, ids in zip(batch.feeds, arrays["ids"], strict=True):
                    prompt = prompts[number]
                    own = slice(start, start + prompt.answer_tokens)
                    start = own.stop
                    correct = bool(arrays["first"][own].all())
                    score = float(correct)
                    written = None
                    if asked := prompt.generation:
                        written = str(decode(ids[ids >= 0].tolist(), skip_special_tokens=True))
                        score = share_found(written, asked.answers, asked.any_of)
                    answers[number] = Answer(
                        schedule=job.label,
                        length=length,
                        task=prompt.task,
                        depth=prompt.depth,
                        prompt=number,
                        position=prompt.position,
                        answer="; ".join(question.answer for question in prompt.questions),
                        tokens=prompt.answer_tokens,
                        correct=correct,
                        score=score,
                        nll=float(arrays["nll"][own].sum(dtype=np.float64)),
                        generated=written,
                    )
            self.answers += [answers[number] for number in sorted(answers)]
            self.tables[job.label, length] = job.tables.table_sha256

        scorer = self.backend.answers(prompts, job.tables)
        return task_of(job.label, job, scorer, finish, form, asked=prompts_sha256(prompts))


def plan_prompts(prompts: Sequence[Prompt], batch_tokens: int) -> BatchPlan[int]:
    """Plans which prompts of one length are fed together."""

    def shape(number: int) -> tuple[int, ...]:
        """Returns the sizes that all prompts of a batch have in common."""
        prompt = prompts[number]
        generated = len(prompt.generation.ids) if prompt.generation else 0
        return prompt.length, len(prompt.questions), generated, prompt.new_tokens

    batches = []
    ordered = sorted(range(len(prompts)), key=shape, reverse=True)
    for (positions, questions, *_), alike in itertools.groupby(ordered, shape):
        numbers = tuple(alike)
        together = max(1, batch_tokens // positions) if questions == 1 else 1
        for start in range(0, len(numbers), together):
            batches.append(Batch(len(batches), numbers[start : start + together], positions))
    return BatchPlan(tuple(batches))
