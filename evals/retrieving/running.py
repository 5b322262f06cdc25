"""Asks the same questions under every schedule: schedules x lengths x prompts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, cast

import numpy as np

from ...keywords import refuse_unknown
from ...models.rotary_modules import evaluating
from ..data.windows import Window, check_lengths
from ..metrics.stored import AS_IS, ModelFacts
from ..parallel.processes import Group, World
from ..running import fingerprints
from ..running.progress import Notes
from ..running.runner import Facts, Runner, Task, carry_out
from ..running.variants import HeldTables, Labelled, Variant, names_for, trained_length, variants
from ..scoring import memory
from ..scoring.batches import Batch, BatchPlan, Cost, Feed, Scored
from ..statistics.intervals import PERCENT
from ..store import Shelf, Store
from .answering import AnswerScorer, Score
from .answers import Answer
from .keywords import RetrievalKeywords
from .prompt_set import RetrievalOptions, RetrievalPrompts, asked_sha256, check_depths, prompts_sha256
from .results import Retrieval
from .tasks import DIGITS, TASKS, Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from ..running.preparing import Checkpoint, Wanted


def retrieval(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    lengths: int | str | Iterable[int | str],
    depths: Iterable[float] | int = 5,
    schedules: Iterable[object] = (AS_IS,),
    *,
    task: str = "passkey",
    baseline: object = None,
    bos: str | int = "auto",
    out: str | Path | None = None,
    fresh: bool = False,
    force: bool = False,
    **options: Unpack[RetrievalKeywords],
) -> Retrieval:
    """Measures whether ``model`` finds numbers hidden in long texts, at every length and depth, under every schedule.

    Each schedule is patched in and reverted bit for bit. Tables that depend on the length are frozen at the measured
    length. ``as-is`` (the unchanged model) always runs. It is the baseline of the paired comparison unless ``baseline``
    names another schedule.

    Args:
        model: a causal language model of transformers, possibly compiled or PEFT-wrapped.
        tokenizer: encodes the prompts, and has the BOS token.
        lengths: positions the model sees, BOS and answer included.
        depths: the places of the keys, from 0 (first) to 1 (last), or a number of evenly spread places.
        schedules: specs like "yarn:factor=8", or schedule objects.
        task: "passkey", "multi-key", "multi-value" or "variable-tracking".
        bos: "auto" (the tokenizer's, if it has one), "yes", "no", or an id.
        out: a folder for the result, and for every batch as soon as it is finished. After an interruption the same
            call continues from there.
        fresh: ask again what is stored in ``out``.
        force: replace results in ``out`` of another text or model, or more than these.
        options: the fields of :class:`RetrievalOptions`.

    Raises:
        DataError: a length is too short for the task, a depth is outside [0, 1], or the tokenizer cannot write numbers.
        ScheduleError: a schedule does not exist or does not fit; raised before anything is measured.
        RunError: logits are NaN or infinite, or a prompt does not fit into memory.
        CheckpointError: ``out`` cannot be written, holds another kind of run, or another process is writing into it.
    """
    own = ("task", "baseline", "bos", "out", "fresh", "force")
    refuse_unknown("ropescale.evals.retrieval", options, (*own, *RetrievalKeywords.__annotations__))
    chosen = RetrievalOptions(**options)
    run = RetrievalRun(
        model, RetrievalPrompts(tokenizer, lengths, depths, task, bos, chosen), schedules, baseline, chosen
    )
    return carry_out(run, None if out is None else Retrieval.writable_folder(out), fresh, force=force)


class RetrievalRun:
    """A run that can be interrupted: :meth:`result` holds the schedules and lengths that are complete."""

    def __init__(
        self,
        model: PreTrainedModel,
        prompt_set: RetrievalPrompts,
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
        prompt_set: RetrievalPrompts,
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
                "tokens": prompt_set.positions,
                "questions": sum(len(prompt.questions) for prompt in prompt_set.every),
                "not_retokenized": sum(not prompt.retokenizes for prompt in prompt_set.every),
                "skipped": {},
            },
            protocol={
                "name": "retrieval",
                "task": prompt_set.task,
                "holds": TASKS[prompt_set.task],
                "depths": list(prompt_set.depths),
                "digits": DIGITS,
                "trials": options.trials,
                "seed": options.seed,
                "bos": prompt_set.bos_option,
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
        names = ("trials", "seed", "batch_tokens", "source")
        chosen = {name: getattr(self.options, name) for name in names}
        prompt_set = {
            "task": self.prompt_set.task,
            "lengths": list(self.prompt_set.lengths),
            "depths": list(self.prompt_set.depths),
        }
        return {"kind": "retrieval", "facts": self.facts, **prompt_set, **chosen}

    def _plan(self, length: int) -> BatchPlan:
        """Plans the prompts of one length as windows whose last tokens are scored, one for each question."""
        prompts = self.prompt_set.prompts[length]
        feeds = [Feed(n, Window(0, length, length - len(each.questions))) for n, each in enumerate(prompts)]
        together, sizes = self._together(prompts), tuple(feed.window.count for feed in feeds)
        starts = enumerate(range(0, len(feeds), together))
        batches = tuple(Batch(n, tuple(feeds[start : start + together]), length) for n, start in starts)
        return BatchPlan(batches, sizes, Cost(len(feeds), length * len(feeds), sum(sizes), 1.0))

    def _together(self, prompts: Sequence[Prompt]) -> int:
        return self.answerer.together(prompts)

    def _task(self, length: int, tables: HeldTables) -> Task:
        prompts, plan = self.prompt_set.prompts[length], self._plans[length]
        facts = {"length": length, "rotation": tables.rotation, "plan": plan.sha256, "asked": asked_sha256(prompts)}
        score, finish = partial(self._scored, prompts), partial(self._finish, length, tables)
        return Task(tables.variant.label, plan, [facts], score, finish, tables.live, values=_VALUES, nll=False)

    def _scored(self, prompts: Sequence[Prompt], batch: Batch, lacking: Sequence[int]) -> list[Scored]:
        before = self.answerer.forward_passes
        asked = self.answerer.answers([prompts[feed.document] for feed in batch.feeds])
        packed = pack_scores(score for _, scores in asked for score in scores)
        return [Scored(packed, self.answerer.forward_passes - before)]

    def _finish(self, length: int, tables: HeldTables, shelves: Sequence[Shelf]) -> None:
        """Adds the answers of one schedule at one length to the results."""
        (shelf,), label, prompts = shelves, tables.variant.label, self.prompt_set.prompts[length]
        batches = [shelf.batches[batch.number] for batch in self._plans[length].batches]
        scores = (score for each in batches for score in _unpacked(each.nll))
        for number, prompt in enumerate(prompts):
            self.answers.extend(_answers(label, number, prompt, [next(scores) for _ in prompt.questions]))
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
    bos: str | int,
    options: RetrievalOptions,
    here: World,
) -> RetrievalRun:
    """Prepares a retrieval run: checks everything cheap first, and loads the weights last."""
    lengths, depths = check_lengths(lengths), check_depths(depths)
    asked = checkpoint.asked(wanted, lengths[-1])
    prompt_set = RetrievalPrompts(checkpoint.tokenizer(), lengths, depths, task, bos, options)
    notes = Notes.of(options.progress)
    checkpoint.warn(notes)
    asked.tell(notes)
    model = checkpoint.model(here)
    options = replace(options, patching=asked.patching, path=checkpoint.folder)
    return RetrievalRun(model, prompt_set, asked.schedules, asked.baseline, options)


ANSWERING = 1
"""A version, raised when the same model and prompts would give other answers, so that stored ones are not reused."""

_VALUES = 2
"""How many numbers are stored for each question: its NLL, and whether it is right."""


def pack_scores(scores: Iterable[Score]) -> np.ndarray:
    """Packs each question as two fp64 numbers."""
    return np.array([(score.nll, score.correct) for score in scores], "<f8").ravel()


def _unpacked(values: np.ndarray) -> list[Score]:
    return [Score(float(nll), bool(right)) for nll, right in values.reshape(-1, _VALUES)]


def _answers(schedule: str, number: int, prompt: Prompt, scores: Sequence[Score]) -> list[Answer]:
    return [
        Answer(
            schedule=schedule,
            length=prompt.length,
            depth=question.depth,
            actual_depth=question.actual_depth,
            trial=prompt.trial,
            prompt=number,
            position=question.position,
            answer=question.answer,
            tokens=question.stop - question.start,
            correct=score.correct,
            nll=score.nll,
        )
        for question, score in zip(prompt.questions, scores, strict=True)
    ]
