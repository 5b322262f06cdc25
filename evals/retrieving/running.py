"""Runs the same prompts with every schedule: schedules x lengths x prompts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from ...models.rotary_modules import evaluating
from ..data.windows import Window
from ..metrics.stored import ModelFacts
from ..parallel.processes import Group, World
from ..running import fingerprints
from ..running.progress import Notes
from ..running.runner import Facts, Runner, Task
from ..running.variants import HeldTables, WithTables, names_for, trained_length, variants
from ..scoring import memory
from ..scoring.batches import Batch, BatchPlan, Feed, Scored
from ..statistics.intervals import PERCENT
from ..store import Shelf, Store
from .answering import AnswerScorer, Score
from .answers import Answer, share_found
from .prompt_set import PromptSelection, RetrievalOptions, RetrievalPrompts, asked_sha256
from .results import Retrieval
from .tasks import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ..running.checkpoint import Checkpoint
    from ..running.options import Schedules


class RetrievalRun:
    """A resumable run: :meth:`result` has the complete schedules and lengths."""

    def __init__(
        self,
        model: PreTrainedModel,
        prompt_set: RetrievalPrompts,
        schedules: Schedules,
        options: RetrievalOptions,
    ) -> None:
        self.answerer = AnswerScorer(model, options.batch_tokens)
        prompt_set.check_ids(self.answerer.vocabulary)
        made, labelled = variants(model, schedules, Notes.of(options.progress))
        self._begin(prompt_set, options, made, labelled, trained_length(model))

    def _begin(
        self,
        prompt_set: RetrievalPrompts,
        options: RetrievalOptions,
        made: Sequence[WithTables],
        baseline: str,
        trained: int | None,
    ) -> None:
        """Plans the prompts; ``made`` are the labelled schedules."""
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
        """The completed parts, as text; "" for none."""
        return f"{len(self.tables)} finished parts" if self.tables else ""

    def run(self, store: Store | None = None, group: Group | None = None) -> None:
        """Asks the prompts under every schedule; :attr:`answers` has the complete ones even after an interruption.

        Args:
            store: keeps finished batches, which are not asked again.
            group: the processes that share the prompts; only the first one's :attr:`answers` are complete then.
        """
        work = partial(memory.work, self.answerer.model)
        runner = Runner(self.facts, store or Store(), group or Group(World()), self.notes, work)
        with evaluating(self.answerer.model):
            held = (variant.tables(self.prompt_set.lengths) for variant in self.variants)
            runner.take([self._task(length, tables) for each in held for length, tables in each.items()])
            runner.announce(self._about)
            runner.run(self._about)

    def planned(self) -> dict[str, Any]:
        """Returns the part of results.json that is known before the run."""
        rows = [
            {"schedule": each.label, "length": length} for each in self.variants for length in self.prompt_set.lengths
        ]
        known = self.result()
        return {"model": known.model, "data": known.data, "protocol": known.protocol, "rows": rows}

    def result(self) -> Retrieval:
        """Returns the result of all complete parts."""
        options, prompt_set = self.options, self.prompt_set
        return Retrieval(
            model={**self.model_facts, "trained_length": self.trained_length},
            data=prompt_set.data,
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
        chosen = {"batch_tokens": self.options.batch_tokens, "source": self.prompt_set.source}
        return {"kind": "retrieval", "facts": self.facts, **asked, **chosen}

    def _plan(self, length: int) -> BatchPlan:
        """Plans the prompts of one length as windows, with one scored token for each stored number of a prompt."""
        prompts = self.prompt_set.prompts[length]
        feeds = [Feed(n, Window(0, each.length, each.length - _numbers(each))) for n, each in enumerate(prompts)]

        def shape(feed: Feed) -> tuple[int, ...]:
            """Returns the sizes that prompts of one batch share, including those of generation."""
            prompt = prompts[feed.document]
            asked = prompt.generation
            generated = (len(asked.ids), asked.new_tokens) if asked else ()
            return (prompt.length, len(prompt.endings), *generated)

        batches: list[Batch] = []
        for (positions, *_), alike in groupby(sorted(feeds, key=shape, reverse=True), shape):
            same = tuple(alike)
            size = self._together(prompts[same[0].document])
            parts = (same[start : start + size] for start in range(0, len(same), size))
            batches += [Batch(number, part, positions) for number, part in enumerate(parts, len(batches))]
        return BatchPlan(tuple(batches), tuple(feed.window.count for feed in feeds))

    def _together(self, prompt: Prompt) -> int:
        """Returns the number of prompts like this per batch."""
        return self.answerer.together(prompt)

    def _task(self, length: int, tables: HeldTables) -> Task:
        prompts, plan = self.prompt_set.prompts[length], self._plans[length]
        facts = {"length": length, "rotation": tables.rotation, "plan": plan.sha256, "asked": asked_sha256(prompts)}
        score, finish = partial(self._scored, prompts), partial(self._finish, length, tables)
        return Task(tables.variant.label, plan, [facts], score, finish, tables.live, nll=False)

    def _scored(self, prompts: Sequence[Prompt], batch: Batch, lacking: Sequence[int]) -> list[Scored]:
        before, asked = self.answerer.forward_passes, [prompts[feed.document] for feed in batch.feeds]
        scores = self.answerer.scores(asked)
        written = self.answerer.generated(asked) if asked[0].generation else [()] * len(asked)
        packed = [pack(*each) for each in zip(asked, scores, written, strict=True)]
        return [Scored(np.concatenate(packed), self.answerer.forward_passes - before)]

    def _finish(self, length: int, tables: HeldTables, shelves: Sequence[Shelf]) -> None:
        """Adds the answers of one schedule at one length to the results."""
        (shelf,), label, prompts = shelves, tables.variant.label, self.prompt_set.prompts[length]
        kept = self._plans[length].assembled({number: each.nll for number, each in shelf.batches.items()})
        for number, (prompt, numbers) in enumerate(zip(prompts, kept, strict=True)):
            scores, ids = unpack(prompt, numbers)
            written = (
                str(self.prompt_set.tokenizer.decode(ids, skip_special_tokens=True)) if prompt.generation else None
            )
            self.answers.extend(answers_of(label, length, number, prompt, scores, written))
        batches = [shelf.batches[batch.number] for batch in self._plans[length].batches]
        passes = 0 if shelf.key in self._counted else sum(each.parts for each in batches)
        self._counted.add(shelf.key)
        self.cost.append({"schedule": label, "lengths": [length], "forward_passes": passes})
        self.tables[label, length] = tables.table_sha256


def prepare(
    checkpoint: Checkpoint, schedules: Schedules, selection: PromptSelection, options: RetrievalOptions, here: World
) -> RetrievalRun:
    """Prepares a retrieval run: checks everything cheap first, and loads the weights last."""
    notes = Notes.of(options.progress)
    schedules = checkpoint.filled(schedules, selection.lengths[-1], notes)
    prompt_set = selection.made(checkpoint.tokenizer(), options)
    checkpoint.warn(notes)
    return RetrievalRun(checkpoint.model(here), prompt_set, schedules, options)


ANSWERING = 2
"""A version, raised when the same model and prompts would give other answers, so that stored ones are not reused."""

_NO_TOKEN = -1.0
"""The padding of shorter generated texts."""


def _numbers(prompt: Prompt) -> int:
    """Counts the stored numbers of a prompt: two per question, and the generated ids."""
    return 2 * len(prompt.questions) + (prompt.generation.new_tokens if prompt.generation else 0)


def pack(prompt: Prompt, scores: Sequence[Score], written: Sequence[int] | np.ndarray) -> np.ndarray:
    """Packs the scores of a prompt, two numbers each, and the generated ids, as fp64, which holds them exactly."""
    numbers = [*np.ravel(scores), *written]
    return np.array(numbers + [_NO_TOKEN] * (_numbers(prompt) - len(numbers)), "<f8")


def unpack(prompt: Prompt, numbers: np.ndarray) -> tuple[list[Score], list[int]]:
    """Returns the scores of a prompt and the generated ids."""
    pairs, ids = np.split(numbers, [2 * len(prompt.questions)])
    scores = [Score(float(nll), bool(right)) for nll, right in pairs.reshape(-1, 2)]
    return scores, [int(each) for each in ids if each != _NO_TOKEN]


def answers_of(
    schedule: str, length: int, number: int, prompt: Prompt, scores: Sequence[Score], written: str | None
) -> list[Answer]:
    """Returns an answer for each question of a prompt; with generation, a single one for all its answers.

    Args:
        written: the generated text, which then determines the score.
    """
    pairs = list(zip(prompt.questions, scores, strict=True))
    asked, answers = prompt.generation, []
    for group in [pairs] if asked else [[pair] for pair in pairs]:
        question, correct = group[0][0], all(score.correct for _, score in group)
        answer = Answer(
            schedule=schedule,
            length=length,
            task=prompt.task,
            depth=question.depth,
            actual_depth=question.actual_depth,
            trial=prompt.trial,
            prompt=number,
            position=question.position,
            answer="; ".join(each.answer for each, _ in group),
            tokens=sum(each.stop - each.start for each, _ in group),
            correct=correct,
            score=share_found(written or "", asked.answers, asked.any_of) if asked else float(correct),
            nll=sum(score.nll for _, score in group),
            generated=written,
        )
        answers.append(answer)
    return answers
