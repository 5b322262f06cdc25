"""Schedules x lengths x prompts: the same questions, asked under every schedule."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import DataError
from ...patching import evaluating
from .. import data, fingerprints
from ..distributing import Group, World, dealt, window_cost
from ..measuring import trained_length
from ..progress import Progress
from ..treatments import AS_IS, Treatment, treatments
from ..windows import check_lengths
from .answering import Answerer, Score
from .results import Answer, Retrieval
from .tasks import DIGITS, TASKS, Prompt, prompts
from .words import Borrowed, Generated


def retrieval(
    model: Any,
    tokenizer: Any,
    lengths: Iterable[int],
    depths: Iterable[float] | int = 5,
    schedules: Iterable[Any] = (AS_IS,),
    *,
    task: str = "passkey",
    baseline: Any = None,
    bos: str | int = "auto",
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
        options: the fields of :class:`Options`.

    Raises:
        DataError: lengths too short for the task, depths outside [0, 1], a tokenizer that cannot write numbers.
        ScheduleError: a schedule that does not exist or does not fit; raised before anything is measured.
        RunError: NaN or infinite logits, or a prompt that does not fit into memory.
    """
    chosen = Options(**options)
    run = Run(model, Quiz(tokenizer, lengths, depths, task, bos, chosen), schedules, baseline, chosen)
    run.run()
    return run.result()


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
        self, tokenizer: Any, lengths: Iterable[int], depths: Iterable[float] | int, task: str, bos: str | int,
        options: Options,
    ) -> None:  # fmt: skip
        self.task, self.lengths, self.depths = check_task(task), check_lengths(lengths), check_depths(depths)
        self.bos_option, self.bos = bos, data.bos_id(bos, tokenizer)
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
                document = data.Document(prompt.name, prompt.ids(ending).tolist(), None, "")
                data.check_ids([document], vocabulary, self.bos)


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
    """

    treatment: Treatment
    length: int
    frozen_at: int | None
    rotation: str
    table_sha256: str

    @property
    def key(self) -> Key:
        return self.rotation, self.length


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
        self._scores: dict[Key, dict[int, list[list[Score]]]] = {}  # by batch, by prompt
        self._passes: dict[Key, int] = {}

    def run(self, group: Group | None = None) -> None:
        """Asks under every schedule; what is complete is in :attr:`answers` even when this is interrupted.

        Args:
            group: the processes that share the prompts; only the leader's :attr:`answers` are complete then.
        """
        group = group or Group(World())
        with evaluating(self.answerer.model):
            jobs = self.jobs()
            left = self._shared(jobs, group.world)
            for treatment in self.treatments:
                own = [job for job in jobs if job.treatment is treatment]
                total = sum(job.length * len(batch) for job in own for batch in left.get(job.key, {}).values())
                with Progress(treatment.label, total, self.options.progress and total > 0) as progress:
                    for job in own:
                        self._ask(job, left.pop(job.key, {}), progress)
                        if group.world.size == 1:
                            self._finish(job)
        if group.world.size > 1:
            self._gather(jobs, group)

    def jobs(self) -> list[Job]:
        """Every schedule at every length. One that does not fit fails here, before hours of the others."""
        return [job for treatment in self.treatments for job in self._jobs(treatment)]

    def result(self) -> Retrieval:
        """Everything asked so far."""
        options, quiz = self.options, self.quiz
        model = fingerprints.describe(self.answerer.model, options.path)
        return Retrieval(
            model={**model, "trained_length": trained_length(self.answerer.model)},
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

    def _jobs(self, treatment: Treatment) -> list[Job]:
        with treatment.applied(self.model, self.options.patching) as patch:
            frozen = treatment.depends_on_length(self.model, patch)
        return [self._job(treatment, length, length if frozen else None) for length in self.quiz.lengths]

    def _job(self, treatment: Treatment, length: int, frozen_at: int | None) -> Job:
        model = self.answerer.model
        with treatment.applied(self.model, self.options.patching, frozen_at):
            rotation, table = fingerprints.rotation_sha256(model), fingerprints.table_sha256(model)
        return Job(treatment, length, frozen_at, rotation, table)

    def _shared(self, jobs: Sequence[Job], world: World) -> dict[Key, dict[int, Sequence[Prompt]]]:
        """By job, the batches that this process is to ask, by their numbers; each batch is some process's."""
        keys = dict.fromkeys(job.key for job in jobs)
        every = [(k, n, b) for k in keys for n, b in enumerate(self.answerer.batches(self.quiz.prompts[k[1]]))]
        owners = dealt([len(batch) * window_cost(key[1]) for key, _, batch in every], world.size)
        mine: dict[Key, dict[int, Sequence[Prompt]]] = {}
        for (key, number, batch), owner in zip(every, owners, strict=True):
            if owner == world.rank:
                mine.setdefault(key, {})[number] = batch
        return mine

    def _ask(self, job: Job, batches: Mapping[int, Sequence[Prompt]], progress: Progress) -> None:
        """These batches of one length, or none: under the same tables the answers are those of before."""
        if not batches:
            return
        found, before = {}, self.answerer.forward_passes
        with job.treatment.applied(self.model, self.options.patching, job.frozen_at):
            for number, batch in batches.items():
                found[number] = [scores for _, scores in self.answerer.answers(batch)]
                progress.add(job.length * len(batch))
        self._scores[job.key] = found
        self._passes[job.key] = self.answerer.forward_passes - before

    def _gather(self, jobs: Sequence[Job], group: Group) -> None:
        """Brings every process's answers to the leader, and finishes the jobs there."""
        found = group.to_leader((self._scores, self._passes))
        if not group.world.leads:
            return
        self._scores = {job.key: {} for job in jobs}
        self._passes = dict.fromkeys(self._scores, 0)
        for scores, passes in found:
            for key in scores:
                self._scores[key] |= scores[key]
                self._passes[key] += passes[key]
        for job in jobs:
            self._finish(job)

    def _finish(self, job: Job) -> None:
        """A job whose batches are all there, for the results."""
        label, batches = job.treatment.label, self._scores[job.key]
        scores = [each for number in sorted(batches) for each in batches[number]]
        for number, (prompt, own) in enumerate(zip(self.quiz.prompts[job.length], scores, strict=True)):
            self.answers.extend(_answers(label, number, prompt, own))
        passes = self._passes.pop(job.key, 0)  # of the first job that has these tables
        self.cost.append({"schedule": label, "lengths": [job.length], "forward_passes": passes})
        self.tables[label, job.length] = job.table_sha256


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
