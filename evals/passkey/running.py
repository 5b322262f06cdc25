"""Schedules x lengths x prompts: the same questions, asked under every schedule."""

from __future__ import annotations

import functools
import hashlib
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import DataError
from ...models.patching import evaluating
from ..data import documents
from ..data.windows import Window, check_lengths
from ..parallel.processes import Group, World, owners
from ..running import fingerprints
from ..running.batches import Batch, Cost, Feed, Plan
from ..running.executor import Scored
from ..running.perplexity import trained_length
from ..running.progress import Progress
from ..running.resuming import Shelf, Store, opened
from ..running.treatments import AS_IS, Treatment, treatments
from .answering import Answerer, Score
from .filler import Borrowed, Generated
from .results import Answer, Retrieval, retrieval_folder
from .tasks import DIGITS, TASKS, Prompt, prompts


def retrieval(
    model: Any,
    tokenizer: Any,
    lengths: int | str | Iterable[int | str],
    depths: Iterable[float] | int = 5,
    schedules: Iterable[Any] = (AS_IS,),
    *,
    task: str = "passkey",
    baseline: Any = None,
    bos: str | int = "auto",
    out: str | Path | None = None,
    fresh: bool = False,
    **options: Any,
) -> Retrieval:
    """Whether ``model`` finds numbers hidden in long texts, at every length and depth, under every schedule.

    Each schedule is patched in and reverted bit for bit; where its tables depend on the length they are frozen at the
    length asked at. ``as-is`` (the model as it comes) always runs, and is the baseline of the paired comparison unless
    ``baseline`` says otherwise.

    Args:
        model: a causal language model of transformers, possibly compiled or PEFT-wrapped.
        tokenizer: makes the prompts, and says what BOS is.
        lengths: positions the model sees, BOS and answer included.
        depths: where the keys stand, from 0 (first) to 1 (last), or how many places, evenly spread.
        schedules: specs like "yarn:factor=8", or schedule objects.
        task: "passkey", "multi-key", "multi-value" or "variable-tracking".
        bos: "auto" (the tokenizer's, if it has one), "yes", "no", or an id.
        out: a folder for the result, and for every batch as soon as it is finished: the same call again continues
            where this one was interrupted.
        fresh: ask anew what is stored in ``out``.
        options: the fields of :class:`Options`.

    Raises:
        DataError: lengths too short for the task, depths outside [0, 1], a tokenizer that cannot write numbers.
        ScheduleError: a schedule that does not exist or does not fit; raised before anything is measured.
        RunError: NaN or infinite logits, or a prompt that does not fit into memory.
        CheckpointError: ``out`` cannot be written, holds another kind of run, or another process is writing into it.
    """
    chosen = Options(**options)
    run = Run(model, Quiz(tokenizer, lengths, depths, task, bos, chosen), schedules, baseline, chosen)
    if out is None:
        run.run()
        return run.result()
    folder = retrieval_folder(out)
    with opened(folder, fresh) as kept:
        run.run(kept)
        result = run.result()
        result.save(folder)
    return result


@dataclass(frozen=True)
class Options:
    """What else a run can be told.

    Attributes:
        trials: prompts per length (and per depth, for passkey).
        seed: of the texts and numbers. The same seed gives the same prompts, whatever other lengths there are.
        haystack: a text to hide the numbers in; None for generated sentences.
        threshold: share of the best accuracy at the shortest length that counts for the effective length.
        batch_tokens: feed prompts together up to this many positions (at least one).
        patching: keyword arguments of :func:`ropescale.patch`, such as ``layers`` or ``on_top``.
        source: what the haystack is called in the results.
        path: the checkpoint's folder, whose files are then fingerprinted; else the live parameters are.
        progress: a progress bar on stderr where that is a terminal, else a line a minute.
    """

    trials: int = 10
    seed: int = 0
    haystack: str | None = None
    threshold: float = 0.85
    batch_tokens: int = 8192
    patching: dict[str, Any] = field(default_factory=dict)
    source: str | None = None
    path: str | Path | None = None
    progress: bool = False

    def __post_init__(self) -> None:
        for name in ("trials", "batch_tokens"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise DataError(f"{name} must be a whole number of 1 or more, not {value!r}")
        if not 0 < self.threshold <= 1:
            raise DataError(f"threshold {self.threshold!r} is not a share; give one above 0 and at most 1, like 0.85")


class Quiz:
    """All the questions of a run, before any model is there.

    Attributes:
        task, lengths, depths: what is asked, and where; both ascending.
        bos: the id in front of every prompt, or None.
        bos_option: what was asked for.
        prompts: by length.
    """

    def __init__(
        self,
        tokenizer: Any,
        lengths: int | str | Iterable[int | str],
        depths: Iterable[float] | int,
        task: str,
        bos: str | int,
        options: Options,
    ) -> None:
        self.task, self.lengths, self.depths = check_task(task), check_lengths(lengths), check_depths(depths)
        self.bos_option, self.bos = bos, documents.bos_id(bos, tokenizer)
        filler = Generated() if options.haystack is None else Borrowed(options.haystack)
        self.prompts = {
            length: prompts(
                task, tokenizer, length, self.depths, options.trials, seed=options.seed, filler=filler, bos=self.bos
            )
            for length in self.lengths
        }

    @property
    def every(self) -> list[Prompt]:
        """The prompts of all lengths."""
        return [prompt for made in self.prompts.values() for prompt in made]

    @property
    def positions(self) -> int:
        """What the prompts hold, each read once."""
        return sum(length * len(made) for length, made in self.prompts.items())

    def check_ids(self, vocabulary: int) -> None:
        """Refuses ids that the model has no row for.

        Raises:
            DataError: names the prompt, the position and the id.
        """
        for prompt in self.every:
            for ending in range(len(prompt.endings)):
                document = documents.Document(prompt.name, prompt.ids(ending).tolist(), None, "")
                documents.check_ids([document], vocabulary, self.bos)


Key = tuple[str, int]
"""What answers depend on, the model and the prompts being given: the hash of the rotation, and the length."""


@dataclass(frozen=True)
class Job:
    """The questions of one length under one schedule.

    Attributes:
        treatment: the schedule.
        length: of the prompts.
        frozen_at: the length whose tables are live, where they depend on the length.
        rotation: a hash of all that the schedule decides; jobs with the same one have the same answers.
        table_sha256: of the live tables, as the results show it.
        plan: which prompts are asked together.
        asked: a hash of the prompts and of where their answers are.
    """

    treatment: Treatment
    length: int
    frozen_at: int | None
    rotation: str
    table_sha256: str
    plan: Plan
    asked: str

    @property
    def key(self) -> Key:
        return self.rotation, self.length

    @property
    def facts(self) -> dict[str, Any]:
        """What the answers depend on besides the model, as the store keeps it."""
        return {"length": self.length, "rotation": self.rotation, "plan": self.plan.sha256, "asked": self.asked}


class Run:
    """A run that can be interrupted: :meth:`result` holds the schedules and lengths that are complete."""

    def __init__(self, model: Any, quiz: Quiz, schedules: Iterable[Any], baseline: Any, options: Options) -> None:
        self.model, self.quiz, self.options = model, quiz, options
        self.treatments, self.baseline = treatments(schedules, baseline)
        self.answerer = Answerer(model, options.batch_tokens)
        quiz.check_ids(self.answerer.vocabulary)
        self.answers: list[Answer] = []
        self.tables: dict[tuple[str, int], str] = {}
        self.cost: list[dict[str, Any]] = []
        self._plans: dict[int, Plan] = {}
        self._finished: set[Key] = set()

    def run(self, kept: Store | None = None, group: Group | None = None) -> None:
        """Asks under every schedule; what is complete is in :attr:`answers` even when this is interrupted.

        Args:
            kept: finished batches are taken from it and put into it.
            group: the processes that share the prompts; only the leader's :attr:`answers` are complete then.
        """
        kept, group = kept or Store(), group or Group(World())
        with evaluating(self.answerer.model):
            jobs = self.jobs()
            shelves = {job.key: kept.shelf(self.facts | job.facts, job.plan, _VALUES) for job in jobs}
            for found in group.from_all({key: shelf.batches for key, shelf in shelves.items()}):
                _merge(shelves, found)
            self._announce(jobs, shelves, kept.last)
            if group.world.leads:
                kept.begin(self._about)
            left = _shared(jobs, shelves, group.world)
            for treatment in self.treatments:
                own = [job for job in jobs if job.treatment is treatment]
                total = sum(batch.fed for job in own for batch in left.get(job.key, []))
                with Progress(treatment.label, total, self.options.progress and total > 0) as progress:
                    for job in own:
                        self._ask(job, left.pop(job.key, []), shelves[job.key], progress)
                        if group.world.size == 1:
                            self._finish(job, shelves[job.key])
        if group.world.size > 1:
            for found in group.to_leader({key: shelf.batches for key, shelf in shelves.items()}):
                _merge(shelves, found)
            for job in jobs if group.world.leads else []:
                self._finish(job, shelves[job.key])

    def jobs(self) -> list[Job]:
        """Every schedule at every length. One that does not fit fails here, before hours of the others."""
        return [job for treatment in self.treatments for job in self._jobs(treatment)]

    def result(self) -> Retrieval:
        """Everything asked so far."""
        options, quiz = self.options, self.quiz
        return Retrieval(
            model={**self.model_facts, "trained_length": trained_length(self.answerer.model)},
            data={
                "source": options.source or ("generated" if options.haystack is None else "in memory"),
                "sha256": _sha256(quiz.every),
                "documents": len(quiz.every),
                "tokens": quiz.positions,
                "questions": sum(len(prompt.questions) for prompt in quiz.every),
                "not_retokenized": sum(not prompt.retokenizes for prompt in quiz.every),
                "skipped": {},
            },
            protocol={
                "name": "retrieval",
                "task": quiz.task,
                "holds": TASKS[quiz.task],
                "depths": list(quiz.depths),
                "digits": DIGITS,
                "trials": options.trials,
                "seed": options.seed,
                "bos": quiz.bos_option,
                "has_bos": quiz.bos is not None,
                "threshold": options.threshold,
                "interval": "Wilson 95%; answer NLL: t over prompts, 95%",
                "batch_tokens": options.batch_tokens,
            },
            versions=fingerprints.versions(),
            cost=list(self.cost),
            answers=list(self.answers),
            tables=dict(self.tables),
            baseline=self.baseline,
            threshold=options.threshold,
        )

    @functools.cached_property
    def model_facts(self) -> dict[str, Any]:
        """The "model" part of results.json; of the model before any schedule."""
        return fingerprints.describe(self.answerer.model, self.options.path)

    @functools.cached_property
    def facts(self) -> dict[str, Any]:
        """What every answer depends on, next to a job's own facts."""
        return {
            "kind": "retrieval",
            **{name: self.model_facts[name] for name in ("weights", "config_sha256", "dtype")},
            **fingerprints.arithmetic(self.answerer.model),
            "bos": self.quiz.bos,
            "answering": ANSWERING,
        }

    @property
    def _about(self) -> dict[str, Any]:
        """What the next run in the same folder compares itself with."""
        names = ("trials", "seed", "batch_tokens", "source")
        chosen = {name: getattr(self.options, name) for name in names}
        quiz = {"task": self.quiz.task, "lengths": list(self.quiz.lengths), "depths": list(self.quiz.depths)}
        return {"kind": "retrieval", "facts": self.facts, **quiz, **chosen}

    def _announce(self, jobs: Sequence[Job], shelves: Mapping[Key, Shelf], last: Mapping[str, Any]) -> None:
        """What is there already, before it starts."""
        distinct = {job.key: job for job in jobs}.values()
        count = sum(len(job.plan.batches) for job in distinct)
        done = count - sum(len(_left(job, shelves[job.key])) for job in distinct)
        before, now = {**last, **last.get("facts", {})}, {**self._about, **self.facts}
        changed = [name.replace("_", "-") for name in now if name != "facts" and before.get(name) != now[name]]
        if done == count:
            self._tell(f"all {count} batches are done already; nothing is asked")
        elif done:
            self._tell(f"resuming: {done} of {count} batches are done")
        elif last:
            self._tell(f"starting a new run, with another {', '.join(changed)}; the answers before are kept beside it")

    def _tell(self, line: str) -> None:
        if self.options.progress:
            print(line, file=sys.stderr)

    def _jobs(self, treatment: Treatment) -> list[Job]:
        with treatment.applied(self.model, self.options.patching) as patch:
            frozen = treatment.depends_on_length(self.model, patch)
        return [self._job(treatment, length, length if frozen else None) for length in self.quiz.lengths]

    def _job(self, treatment: Treatment, length: int, frozen_at: int | None) -> Job:
        model = self.answerer.model
        with treatment.applied(self.model, self.options.patching, frozen_at):
            rotation, table = fingerprints.rotation_sha256(model), fingerprints.table_sha256(model)
        plan, asked = self._plan(length), _questions_sha256(self.quiz.prompts[length])
        return Job(treatment, length, frozen_at, rotation, table, plan, asked)

    def _plan(self, length: int) -> Plan:
        """The prompts of one length as windows whose last tokens are scored, one for each question."""
        if length not in self._plans:
            prompts = self.quiz.prompts[length]
            feeds = [Feed(n, Window(0, length, length - len(each.questions))) for n, each in enumerate(prompts)]
            self._plans[length] = _planned(feeds, self.answerer.together(prompts), length)
        return self._plans[length]

    def _ask(self, job: Job, batches: Sequence[Batch], shelf: Shelf, progress: Progress) -> None:
        """Batches of one length, or none: under the same tables the answers are those of before."""
        if not batches:
            return
        prompts = self.quiz.prompts[job.length]
        with job.treatment.applied(self.model, self.options.patching, job.frozen_at):
            for batch in batches:
                before = self.answerer.forward_passes
                asked = self.answerer.answers([prompts[feed.document] for feed in batch.feeds])
                packed = _packed(score for _, scores in asked for score in scores)
                shelf.put(batch.number, Scored(packed, self.answerer.forward_passes - before))
                progress.add(batch.fed)

    def _finish(self, job: Job, shelf: Shelf) -> None:
        """A job whose batches are all on the shelf, for the results."""
        label, prompts = job.treatment.label, self.quiz.prompts[job.length]
        scores = iter([each for batch in job.plan.batches for each in _unpacked(shelf.batches[batch.number].nll)])
        for number, prompt in enumerate(prompts):
            self.answers.extend(_answers(label, number, prompt, [next(scores) for _ in prompt.questions]))
        again = job.key in self._finished
        passes = 0 if again else sum(each.parts for each in shelf.batches.values())
        self._finished.add(job.key)
        self.cost.append({"schedule": label, "lengths": [job.length], "forward_passes": passes})
        self.tables[label, job.length] = job.table_sha256


ANSWERING = 1
"""Raised whenever the same model and the same prompts would give other answers, so that stored ones are not reused."""

_VALUES = 3
"""Numbers that are kept of each question."""


def _packed(scores: Iterable[Score]) -> np.ndarray:
    """Three numbers for each question, fp32: the two halves of its NLL, which is fp64, and whether it is correct."""
    given = list(scores)
    halves = np.array([score.nll for score in given], "<f8").view("<f4").reshape(-1, 2)
    right = np.array([[score.correct] for score in given], "<f4")
    return np.concatenate([halves, right], axis=1).ravel()


def _unpacked(values: np.ndarray) -> list[Score]:
    table = values.reshape(-1, _VALUES)
    nll = np.ascontiguousarray(table[:, :2]).view("<f8")[:, 0]
    return [Score(float(one), bool(right)) for one, right in zip(nll, table[:, 2])]


def _planned(feeds: Sequence[Feed], together: int, length: int) -> Plan:
    starts = range(0, len(feeds), together)
    batches = tuple(Batch(n, tuple(feeds[start : start + together]), length) for n, start in enumerate(starts))
    sizes, fed = tuple(feed.window.count for feed in feeds), length * len(feeds)
    return Plan(batches, sizes, Cost(len(feeds), fed, sum(sizes), 1.0))


def _left(job: Job, shelf: Shelf) -> list[Batch]:
    """The batches that are not on the shelf, in order."""
    return [batch for batch in job.plan.batches if batch.number not in shelf.batches]


def _shared(jobs: Sequence[Job], shelves: Mapping[Key, Shelf], world: World) -> dict[Key, list[Batch]]:
    """By job, the batches that are left and that this process is to ask; each batch is some process's."""
    distinct = {job.key: job for job in jobs}
    left = [(key, batch) for key, job in distinct.items() for batch in _left(job, shelves[key])]
    mine: dict[Key, list[Batch]] = {}
    for (key, batch), owner in zip(left, owners([batch for _, batch in left], world.size), strict=True):
        if owner == world.rank:
            mine.setdefault(key, []).append(batch)
    return mine


def _merge(shelves: Mapping[Key, Shelf], found: Mapping[Key, Mapping[int, Scored]]) -> None:
    """What another process has; not written again, because that process does."""
    for key, batches in found.items():
        shelves[key].batches |= batches


def _questions_sha256(prompts: Sequence[Prompt]) -> str:
    """Of the prompts' ids, and of which of them are the answers."""
    places = [(each.ending, each.start, each.stop) for prompt in prompts for each in prompt.questions]
    return hashlib.sha256(f"{_sha256(prompts)} {places}".encode()).hexdigest()


def check_task(task: str) -> str:
    """The task's name.

    Raises:
        DataError: there is no such task.
    """
    if task not in TASKS:
        raise DataError(f"no task is called {task!r}; the tasks are {', '.join(TASKS)}")
    return task


def check_depths(depths: Iterable[float] | int) -> tuple[float, ...]:
    """The depths, ascending, each once; a whole number is how many, evenly from 0 to 1.

    Raises:
        DataError: none, or one outside [0, 1].
    """
    if isinstance(depths, int) and not isinstance(depths, bool):
        if not 2 <= depths <= 1000:
            raise DataError(f"{depths} depths cannot be spread from 0 to 1; give 2 to 1000, or the depths themselves")
        return tuple(number / (depths - 1) for number in range(depths))
    if isinstance(depths, (bool, str, float)):
        raise DataError(f"depths {depths!r} are not a list of numbers from 0 to 1, like [0, 0.5, 1], or how many")
    given = list(depths)
    for depth in given:
        if isinstance(depth, (bool, str)) or not math.isfinite(depth) or not 0 <= depth <= 1:
            raise DataError(f"depth {depth!r} is not a number from 0 (the beginning) to 1 (the end)")
    if not given:
        raise DataError("no depths to ask at; give at least one from 0 to 1, like 0.5")
    return tuple(sorted({float(depth) for depth in given}))


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


def _sha256(made: Iterable[Prompt]) -> str:
    """Of every prompt's ids, little-endian int64, in order."""
    digest = hashlib.sha256()
    for prompt in made:
        digest.update(prompt.context.astype("<i8").tobytes() + prompt.endings.astype("<i8").tobytes())
    return digest.hexdigest()
