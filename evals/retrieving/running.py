"""Asks the same questions under every schedule: schedules x lengths x prompts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ...models.rotary_modules import evaluating
from ..data.prompts import PromptRow
from ..data.windows import Window, check_lengths
from ..metrics.stored import ModelFacts
from ..parallel.processes import Group, World
from ..running import fingerprints
from ..running.progress import Notes
from ..running.runner import Facts, Runner, Task
from ..running.variants import HeldTables, Labelled, Variant, names_for, trained_length, variants
from ..scoring import memory
from ..scoring.batches import Batch, BatchPlan, Cost, Feed, Scored
from ..statistics.intervals import PERCENT
from ..store import Shelf, Store
from .answering import AnswerScorer, Score
from .answers import Answer, share_found
from .prompt_set import PromptCollection, RetrievalOptions, asked_sha256, check_depths, prompts_for, prompts_sha256
from .results import Retrieval
from .tasks import Generation, Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ..running.preparing import Checkpoint, Wanted


class RetrievalRun:
    """A run that can be interrupted: :meth:`result` holds the schedules and lengths that are complete."""

    def __init__(
        self,
        model: PreTrainedModel,
        prompt_set: PromptCollection,
        schedules: Iterable[object],
        baseline: object,
        options: RetrievalOptions,
    ) -> None:
        self.answerer = AnswerScorer(model, options.batch_tokens)
        prompt_set.check_ids(self.answerer.vocabulary)
        made, labelled = variants(model, schedules, baseline, options.patching, Notes.of(options.progress))
        self._begin(prompt_set, options, made, labelled, trained_length(model))

    def _begin(
        self,
        prompt_set: PromptCollection,
        options: RetrievalOptions,
        made: Sequence[Labelled],
        baseline: str,
        trained: int | None,
    ) -> None:
        """Plans the prompts; ``made`` is what is asked, each under its label."""
        self.prompt_set, self.options, self.notes = prompt_set, options, Notes.of(options.progress)
        self.variants, self.baseline, self.trained_length = made, baseline, trained
        self.protocol: dict[str, object] = {}
        self.answers: list[Answer] = []
        self.tables: dict[tuple[str, int], str] = {}
        self.cost: list[dict[str, Any]] = []
        self._plans = {length: self._plan(length) for length in prompt_set.lengths}
        self._counted: set[str] = set()

    @property
    def finished(self) -> str:
        """A description of how much is complete; "" for nothing."""
        return f"{len(self.tables)} finished parts" if self.tables else ""

    def run(self, store: Store | None = None, group: Group | None = None) -> None:
        """Asks under every schedule; :attr:`answers` has the complete ones even after an interruption.

        Args:
            store: keeps finished batches, which are not asked again.
            group: the processes that share the prompts; only the first one's :attr:`answers` are complete then.
        """
        device, work = self.answerer.device, partial(memory.work, self.answerer.model)
        runner = Runner(self.facts, store or Store(), group or Group(World()), self.notes, device, work)
        with evaluating(self.answerer.model):
            held = (cast(Variant, each).tables(self.prompt_set.lengths) for each in self.variants)
            runner.take([self._task(length, tables) for each in held for length, tables in each.items()])
            runner.announce(self._about)
            runner.run(self._about)

    def planned(self) -> dict[str, Any]:
        """Returns results.json as far as it is known before the run."""
        rows = [
            {"schedule": each.label, "length": length} for each in self.variants for length in self.prompt_set.lengths
        ]
        known = self.result()
        return {"model": known.model, "data": known.data, "protocol": known.protocol, "rows": rows}

    def result(self) -> Retrieval:
        """Returns the result of everything asked so far."""
        options, prompt_set = self.options, self.prompt_set
        return Retrieval(
            model={**self.model_facts, "trained_length": self.trained_length},
            data={
                "source": options.source or ("generated" if options.haystack is None else "in memory"),
                "sha256": prompts_sha256(prompt_set.every),
                "documents": len(prompt_set.every),
                "tokens": sum(prompt.length for prompt in prompt_set.every),
                "questions": sum(len(prompt.questions) for prompt in prompt_set.every),
                "not_retokenized": sum(not prompt.retokenizes for prompt in prompt_set.every),
                "skipped": {name: count for name, count in prompt_set.skipped.items() if count},
            },
            protocol={
                "name": "retrieval",
                **prompt_set.protocol,
                "has_bos": prompt_set.bos is not None,
                "threshold": options.threshold,
                **names_for(self.variants),
                **self.protocol,
                "interval": f"Wilson {PERCENT}; answer NLL: t over prompts, {PERCENT}",
                "batch_tokens": options.batch_tokens,
            },
            versions=fingerprints.versions(),
            cost=list(self.cost),
            answers=list(self.answers),
            tables=dict(self.tables),
            baseline=self.baseline,
            threshold=options.threshold,
        )

    @cached_property
    def model_facts(self) -> ModelFacts:
        """The "model" part of results.json: facts about the model before any schedule."""
        return fingerprints.describe(self.answerer.model, self.options.path)

    @cached_property
    def facts(self) -> Facts:
        """The facts that every answer depends on, besides those of its task."""
        return {
            "kind": "retrieval",
            **{name: self.model_facts[name] for name in ("weights", "config_sha256", "dtype")},
            **fingerprints.arithmetic(self.answerer.model),
            "bos": self.prompt_set.bos,
            "answering": ANSWERING,
        }

    @property
    def _about(self) -> Facts:
        """The facts that the next run in the same folder compares with its own."""
        asked = {"lengths": list(self.prompt_set.lengths), **self.prompt_set.protocol}
        chosen = {name: getattr(self.options, name) for name in ("batch_tokens", "source")}
        return {"kind": "retrieval", "facts": self.facts, **asked, **chosen}

    def _plan(self, length: int) -> BatchPlan:
        """Plans the prompts of one length as windows; each has as many scored tokens as numbers are kept of it."""
        prompts = self.prompt_set.prompts[length]
        feeds = [Feed(n, Window(0, each.length, each.length - _numbers(each))) for n, each in enumerate(prompts)]

        def shape(feed: Feed) -> tuple[int, ...]:
            return _shape(prompts[feed.document])

        alike = [list(same) for _, same in groupby(sorted(feeds, key=shape, reverse=True), shape)]
        parts = [part for same in alike for part in self._parts(prompts, same)]
        batches = tuple(Batch(n, part, prompts[part[0].document].length) for n, part in enumerate(parts))
        sizes, fed = tuple(feed.window.count for feed in feeds), sum(batch.fed for batch in batches)
        return BatchPlan(batches, sizes, Cost(len(feeds), fed, sum(sizes), 1.0))

    def _parts(self, prompts: Sequence[Prompt], feeds: Sequence[Feed]) -> Iterator[tuple[Feed, ...]]:
        """Cuts feeds of one shape into those that are fed at once."""
        size = self._together([prompts[feed.document] for feed in feeds])
        return (tuple(feeds[start : start + size]) for start in range(0, len(feeds), size))

    def _together(self, prompts: Sequence[Prompt]) -> int:
        return self.answerer.together(prompts)

    def _task(self, length: int, tables: HeldTables) -> Task:
        prompts, plan = self.prompt_set.prompts[length], self._plans[length]
        facts = {"length": length, "rotation": tables.rotation, "plan": plan.sha256, "asked": asked_sha256(prompts)}
        score, finish = partial(self._scored, prompts), partial(self._finish, length, tables)
        return Task(tables.variant.label, plan, [facts], score, finish, tables.live, nll=False)

    def _scored(self, prompts: Sequence[Prompt], batch: Batch, lacking: Sequence[int]) -> list[Scored]:
        before, asked = self.answerer.forward_passes, [prompts[feed.document] for feed in batch.feeds]
        scores = [found for _, found in self.answerer.answers(asked)]
        written = self.answerer.generated(asked) if asked[0].generation else [None] * len(asked)
        packed = [pack(*each) for each in zip(asked, scores, written, strict=True)]
        return [Scored(np.concatenate(packed), self.answerer.forward_passes - before)]

    def _finish(self, length: int, tables: HeldTables, shelves: Sequence[Shelf]) -> None:
        """Adds the answers of one schedule at one length to the results."""
        (shelf,), label, prompts = shelves, tables.variant.label, self.prompt_set.prompts[length]
        found = self._plans[length].assembled({number: each.nll for number, each in shelf.batches.items()})
        for number, (prompt, numbers) in enumerate(zip(prompts, found, strict=True)):
            scores, ids = unpack(prompt, numbers)
            if prompt.generation is None:
                self.answers.extend(_answers(label, length, number, prompt, scores))
            else:
                text = self.prompt_set.text(ids)
                self.answers.append(_generated(label, length, number, prompt, prompt.generation, scores, text))
        batches = [shelf.batches[batch.number] for batch in self._plans[length].batches]
        passes = 0 if shelf.key in self._counted else sum(each.parts for each in batches)
        self._counted.add(shelf.key)
        self.cost.append({"schedule": label, "lengths": [length], "forward_passes": passes})
        self.tables[label, length] = tables.table_sha256


def prepare(
    checkpoint: Checkpoint,
    wanted: Wanted,
    lengths: Sequence[int],
    depths: Iterable[float] | int,
    task: str,
    rows: Iterable[PromptRow] | None,
    bos: str | int,
    options: RetrievalOptions,
    here: World,
) -> RetrievalRun:
    """Prepares a retrieval run: checks everything cheap first, and loads the weights last."""
    lengths, depths = check_lengths(lengths), check_depths(depths)
    asked = checkpoint.asked(wanted, lengths[-1])
    prompt_set = prompts_for(checkpoint.tokenizer(), lengths, depths, task, rows, bos, options)
    notes = Notes.of(options.progress)
    checkpoint.warn(notes)
    asked.tell(notes)
    model = checkpoint.model(here)
    options = replace(options, patching=asked.patching, path=checkpoint.folder)
    return RetrievalRun(model, prompt_set, asked.schedules, asked.baseline, options)


ANSWERING = 2
"""A version, raised when the same model and prompts would give other answers, so that stored ones are not reused."""

_NO_TOKEN = -1.0
"""Stands where fewer tokens were generated than may be."""


def _shape(prompt: Prompt) -> tuple[int, ...]:
    """Returns what prompts of one batch have in common: their sizes, and what is generated."""
    asked = prompt.generation
    return (prompt.length, len(prompt.endings), *((len(asked.ids), asked.new_tokens) if asked else ()))


def _numbers(prompt: Prompt) -> int:
    """Counts the numbers that are kept of a prompt: two for each question, and the ids that are generated."""
    return 2 * len(prompt.questions) + (prompt.generation.new_tokens if prompt.generation else 0)


def pack(prompt: Prompt, scores: Iterable[Score], written: np.ndarray | None) -> np.ndarray:
    """Packs the scores of a prompt, two numbers each, and the generated ids, as fp64, which holds them exactly."""
    found = np.full(_numbers(prompt), _NO_TOKEN, "<f8")
    packed = np.ravel([(score.nll, score.correct) for score in scores])
    found[: len(packed)] = packed
    if written is not None:
        found[len(packed) : len(packed) + len(written)] = written
    return found


def unpack(prompt: Prompt, numbers: np.ndarray) -> tuple[list[Score], list[int]]:
    """Returns the scores of a prompt and the generated ids."""
    pairs, ids = np.split(numbers, [2 * len(prompt.questions)])
    scores = [Score(float(nll), bool(right)) for nll, right in pairs.reshape(-1, 2)]
    return scores, [int(each) for each in ids if each != _NO_TOKEN]


def _answers(schedule: str, length: int, number: int, prompt: Prompt, scores: Sequence[Score]) -> list[Answer]:
    return [
        Answer(
            schedule=schedule,
            length=length,
            task=prompt.task,
            depth=question.depth,
            actual_depth=question.actual_depth,
            trial=prompt.trial,
            prompt=number,
            position=question.position,
            answer=question.answer,
            tokens=question.stop - question.start,
            correct=score.correct,
            score=float(score.correct),
            nll=score.nll,
        )
        for question, score in zip(prompt.questions, scores, strict=True)
    ]


def _generated(
    schedule: str, length: int, number: int, prompt: Prompt, asked: Generation, scores: Sequence[Score], text: str
) -> Answer:
    """Returns the answer to a prompt from a file: scored by what was generated, and in place over all its texts."""
    return Answer(
        schedule=schedule,
        length=length,
        task=prompt.task,
        depth=None,
        actual_depth=None,
        trial=0,
        prompt=number,
        position=None,
        answer="; ".join(question.answer for question in prompt.questions),
        tokens=sum(question.stop - question.start for question in prompt.questions),
        correct=all(score.correct for score in scores),
        score=share_found(text, asked.answers, asked.any_of),
        nll=sum(score.nll for score in scores),
        generated=text,
    )
