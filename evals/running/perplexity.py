"""Perplexity against length, for several schedules on the same tokens.

With a static schedule the NLL of a token does not depend on later tokens, so one pass at the longest length also gives
the NLLs at every shorter length. If the rotary tables depend on the length, every length uses its own frozen tables,
and lengths with equal tables share a pass. Sliding windows (a stride) differ from length to length, so each length has
its own pass, with tables frozen at that length even if a document's last window is shorter.

All passes are planned before the first one runs: schedule -> tables at each length -> :class:`Job` -> batches.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np

from ...errors import DataError, RopescaleError
from ...files import Json
from ..backends import fingerprints
from ..backends.base import Backend
from ..backends.schedules import HeldTables, Schedules, names_for, passes_of
from ..checking import Parsed
from ..data import chats
from ..data.documents import check_ids
from ..data.windows import prefix, truncated
from ..facts import Divergence, Pass, Tables, Truncation, positions_of
from ..metrics import OPTIONS
from ..metrics.paired import short_length
from ..metrics.verdicts import too_few
from ..parallel.processes import Group
from ..progress import Progress
from ..results.result import Result
from ..scoring.batches import BatchPlan, Feed, Finished, ScoresTexts, assembled, per_token, plan_pass
from ..scoring.scorer import SCORING
from ..statistics.intervals import PERCENT
from ..store import Store
from .corpus import Corpus, refuse_impossible
from .runner import Facts, Job, Runner, Task, task_of


@dataclass(frozen=True)
class Part:
    """Describes a measurement that is a part of a larger run.

    Attributes:
        title: the title of the part's passes; the larger run prints all other notes.
        about: additional facts that the next run in the same folder is compared with.
        further_positions: the number of positions that the larger run feeds outside this part, which are added to the
            cost that truncation may have.
        whole: the progress of the larger run.
    """

    title: str = ""
    about: Json = field(default_factory=dict)
    further_positions: int = 0
    whole: Progress | None = None


class PerplexityRun:
    """An interruptible measurement of a corpus: :meth:`result` returns the complete passes.

    Args:
        corpus: the documents, with the options of the measurement.
        part: for a part of a larger run, what that run says of it.

    Attributes:
        variants: the labelled schedules to measure.
        baseline: the label of the baseline.
        batch_tokens: the maximum number of positions in a batch.

    Raises:
        DataError, ScheduleError: the text, a schedule or an option does not fit; raised before anything is scored.
        ServerError: a server cannot score the text.
    """

    def __init__(self, backend: Backend, corpus: Corpus, schedules: Schedules, part: Part | None = None) -> None:
        self.backend = backend
        self.corpus = corpus
        self.options = corpus.options
        self.part = part or Part()
        self.notes = self.options.notes
        self.variants, self.baseline = backend.variants(schedules, self.notes)
        if schedules.remapped:
            from ..backends.remapped import Remapped

            model = backend.differentiable()
            references = [Remapped(model, scale, is_unpatched=True) for scale in (True, False)]
            self.variants = [*self.variants, *references]
        longest = corpus.lengths[-1]
        backend.refuse(longest, self.notes)
        if backend.vocabulary is not None:
            check_ids(corpus.documents, backend.vocabulary, corpus.bos)
        self.batch_tokens = 1
        if backend.batches:
            self.batch_tokens = self.options.batch_tokens or backend.batch_tokens(longest)
        self.passes: list[Pass] = []
        self.divergences: list[Divergence] = []
        self.truncation: Truncation | None = None
        self._texts = backend.texts(corpus.documents, corpus.bos, self.notes)
        self._plans: dict[int, BatchPlan] = {}
        self._figures: Tables = {}

    def run(self, store: Store, group: Group) -> None:
        """Measures every schedule. :attr:`passes` contains the complete passes, even after an interruption.

        Args:
            store: the store of finished batches.
            group: the processes that share the work; :attr:`passes` is complete only in the first one.
        """
        self.go_on(store, group)
        runner = Runner(self.facts, store, group, self.notes)
        with self.backend.ready():
            jobs, told = self._taken(runner)
            runner.go_on(self._texts)
            if not self.part.title:
                if special := self.corpus.special:
                    self.notes.tell(
                        f"{special:,} tokens of the text are special tokens, which may mark the start or end of text"
                    )
                if runner.announce(self._about):
                    self._announce(jobs, told)
                    self.backend.tell_cost(runner.tokens_left, self.notes)
            if runner.left:
                self._texts.check(runner.left[0])
            runner.run(self._about, self.part.whole)

    def go_on(self, store: Store, group: Group) -> None:
        """Lets all processes plan batches of one size: that of an earlier run, whose batches need not be scored again.

        A part of a larger run has the size of the whole.
        """
        last = store.last
        before = last.get("batch_tokens")
        is_same = last.get("whole", last.get("facts")) == self.facts
        if self.options.batch_tokens is None and is_same and isinstance(before, int):
            self.batch_tokens = before
        self.batch_tokens = group.from_leader(self.batch_tokens)

    @cached_property
    def facts(self) -> Facts:
        """The facts that determine the numbers of all passes; each pass has additional facts."""
        return {
            **self.backend.identity,
            "text": self.corpus.sha256,
            "tokens": fingerprints.tokens_sha256(self.corpus.documents),
            "bos": self.corpus.bos,
            "stride": self.options.stride,
            "scoring": SCORING,
            **self.backend.arithmetic,
        }

    def _announce(self, jobs: Sequence[Job], told: str) -> None:
        """Tells the user about truncation, what so few documents cannot decide, memory, and what the backend cannot
        measure."""
        few = too_few(len(self.corpus.windows)) if len(self.variants) > 1 else ""
        batches = (batch for job in jobs for batch in job.plan.batches)
        widest = max(batches, key=lambda batch: (batch.fed, batch.positions))  # in memory, by the estimate
        limits = self.backend.limits(self.options.short_context and self._short is not None)
        undecided = few and f"{few}: differences are printed without one"
        for note in filter(None, [told, undecided, self.backend.memory(widest), *limits]):
            self.notes.tell(note)

    @property
    def _short(self) -> int | None:
        """The length of the short-context cost; None if every length is beyond the trained one."""
        return short_length(self.corpus.lengths, self.backend.trained)

    # --- planning ---

    def _taken(self, runner: Runner) -> tuple[list[Job], str]:
        """Adds all tasks to a runner, and returns the jobs, and a note on truncation."""
        jobs = []
        for variant in self.variants:
            held = variant.tables(self.corpus.lengths)  # raises an error if the schedule does not fit
            self._figures |= {tables.table_sha256: tables.figures for tables in held.values()}
            if self.options.stride is not None:  # each length has windows of its own
                jobs += [Job(tables, (length,), self._plan(length)) for length, tables in held.items()]
            else:  # as few passes as the tables allow
                jobs += [Job(tables, lengths, self._plan(lengths[-1])) for tables, lengths in passes_of(held)]
        rest = self.part.further_positions + sum(job.plan.positions for job in distinct(jobs))
        planned, told = plan_truncation(
            self.corpus, self.backend.trained, self.backend.as_trained, rest, self.batch_tokens
        )
        form = per_token(nll=np.float32)
        tasks = []
        for job in jobs:
            title = self.part.title or f"{job.label} at {job.lengths[-1]:,}"
            tasks.append(task_of(title, job, self._texts.under(job.tables), partial(self._finish, job), form))
        tasks += self._comparing(jobs)
        if planned:
            title = f"truncation to {planned.lengths[-1]:,}"
            scorer = self._texts.under(planned.tables)
            finish = partial(self._finish_truncation, planned)
            tasks.append(task_of(title, planned, scorer, finish, form, truncation=planned.stride))
        runner.take(tasks)
        return jobs, told

    def _comparing(self, jobs: Sequence[Job]) -> list[Task]:
        """Returns the task of the short-context cost, which compares every schedule with the baseline at one length."""
        if self._short is None or not self.options.short_context or not self.backend.compares:
            return []
        at = {job.label: job.tables for job in jobs if self._short in job.lengths}
        base = at.pop(self.baseline)
        plan = self._plan(self._short)
        others = list(at.values())
        return [comparing(base, others, self._short, plan, self._texts, self.divergences.extend)] if others else []

    # --- the result ---

    @property
    def finished(self) -> str:
        """The number of completed passes, as text, or ""."""
        count = len(self.passes)
        return f"{count} finished pass{'es' * (count > 1)}" if count else ""

    def planned(self) -> Parsed:
        """Returns the part of results.json that is known before the run."""
        options = self.options
        known = self.result()
        lengths = self.corpus.lengths
        trained = known.trained_length
        short = options.short_context and short_length(lengths, trained) is not None and len(self.variants) > 1
        return {
            "model": known.model,
            "data": known.data,
            "protocol": known.protocol,
            "rows": [{"schedule": each.label, "length": length} for each in self.variants for length in lengths],
            "paired": [{"kl": 0.0}] if short else [],
            "repeats": True,
            "key_tokens": options.of_metrics["key_spans"] is not None,
            "truncation": options.truncation is not False and trained is not None and lengths[-1] > trained,
        }

    def result(self) -> Result:
        """Returns everything measured so far."""
        options = self.options
        corpus = self.corpus
        trained = self.backend.trained
        return Result(
            model=self.backend.facts,
            data=corpus.facts,
            protocol={
                "name": "ropescale",
                "mode": "prefix" if options.stride is None else "sliding",
                "bos": corpus.bos_option,
                "stride": options.stride,
                **({} if options.stride else {"windows": options.windows, "budget_tokens": options.budget}),
                **({} if options.score == chats.ALL else {"score": options.score}),
                **(self.truncation.facts if self.truncation else {}),
                "seed": options.seed,
                **{name: options.of_metrics[name] for name, option in OPTIONS.items() if option.read is None},
                **names_for(self.variants),
                **self.backend.protocol,
                "interval": f"{corpus.interval}, {PERCENT}",
                "batch_tokens": self.batch_tokens,
            },
            versions=fingerprints.versions(),
            passes=self.passes,
            documents=corpus.documents,
            windows=corpus.windows,
            bos=corpus.has_bos,
            baseline=self.baseline,
            trained_length=trained,
            tables={each.table_sha256: self._figures[each.table_sha256] for each in self.passes},
            divergences=self.divergences,
            options=dict(options.of_metrics),
            truncation=self.truncation,
        )

    @property
    def _about(self) -> Facts:
        """The facts that the next run in the same folder is compared with."""
        return {
            "facts": self.facts,
            "lengths": list(self.corpus.lengths),
            "batch_tokens": self.batch_tokens,
            "schedules": [variant.label for variant in self.variants],
            **self.part.about,
        }

    def _plan(self, length: int) -> BatchPlan:
        if length not in self._plans:
            tokens = [len(document.ids) for document in self.corpus.documents]
            stride = self.options.stride
            bos = self.corpus.has_bos
            self._plans[length] = plan_pass(tokens, length, stride, bos, self.batch_tokens)
        return self._plans[length]

    def _finish(self, job: Job, finished: Finished) -> None:
        """Adds a completely scored pass to the results."""
        fed = 0 if any(each.key == job.key for each in self.passes) else 1
        self.passes.append(
            Pass(
                schedule=job.label,
                table_sha256=job.tables.table_sha256,
                lengths=job.lengths,
                nll=assembled(job.plan, finished, "nll"),
                forward_passes=fed * job.plan.windows,
                positions=fed * job.plan.positions,
                key=job.key,
            )
        )

    def _finish_truncation(self, job: Job, finished: Finished) -> None:
        nll = assembled(job.plan, finished, "nll")
        self.truncation = Truncation(job.lengths[-1], job.stride, job.tables.table_sha256, nll)


# --- Its tasks ---


def distinct(jobs: Iterable[Job]) -> list[Job]:
    """Returns the distinct jobs; schedules with the same tables share a job."""
    return list({job.key: job for job in jobs}.values())


def comparing(
    base: HeldTables,
    others: Sequence[HeldTables],
    length: int,
    plan: BatchPlan[Feed],
    scorer: ScoresTexts,
    keep: Callable[[list[Divergence]], None],
) -> Task:
    """Returns the task that compares schedules with the baseline, which runs once for each batch.

    Schedules with the same tables share their passes. A schedule with the baseline's tables needs no pass.

    Args:
        base, others: the tables of the baseline and of each schedule.
        length: the number of positions of each window.
        plan: the batches of the windows.
        keep: called with all comparisons.
    """
    changed = {each.rotation: each for each in others if each.rotation != base.rotation}

    def finish(*finished: Finished) -> None:
        zeros = [np.zeros(size, np.float32) for size in plan.sizes]
        ones = [np.ones(size, np.float32) for size in plan.sizes]
        numbers = {base.rotation: [zeros, ones]}
        for rotation, batches in zip(changed, finished, strict=True):
            numbers[rotation] = [assembled(plan, batches, name) for name in ("kl", "same")]
        found = []
        for other in others:
            kl, same = numbers[other.rotation]
            found.append(Divergence(other.variant.label, base.variant.label, length, kl, same))
        keep(found)

    facts = [{"length": length, "divergence": [base.rotation, rotation], "plan": plan.sha256} for rotation in changed]
    form = per_token(kl=np.float32, same=np.bool_)
    compare = partial(scorer.compare, base.live, [each.live for each in changed.values()])
    return Task("short-context cost", plan, facts, form, finish, compare=compare, further_passes=1)


SHARES = (16, 8, 4, 2)
"""The divisors of the trained length that give the candidate strides. The smallest stride that costs at most as much as
all other passes is used."""


def plan_truncation(
    corpus: Corpus, trained: int | None, as_trained: Callable[[int], HeldTables], rest: int, batch_tokens: int
) -> tuple[Job | None, str]:
    """Plans truncation at the requested stride, or at the smallest candidate stride that costs at most as much as all
    other passes.

    Args:
        trained: the trained length, if known.
        as_trained: returns the model's training tables at a length.
        rest: the number of positions that all other passes feed.

    Returns:
        The plan, or None if truncation is skipped; and a note for the user, or "".

    Raises:
        DataError: the requested truncation is impossible, or the stride leaves a token without context.
    """
    options = corpus.options
    longest = corpus.lengths[-1]
    asked = corpus.options.asks_truncation
    refuse_impossible(asked, longest, trained)
    if options.truncation is False or options.stride is not None or trained is None or longest <= trained:
        return None, ""
    known = options.truncation_stride
    if known is not None and known >= trained:
        raise DataError(
            f"truncation_stride {known} leaves a token without context in windows of the trained {trained:,} "
            f"positions; use 1 to {trained - 1}",
            "truncation_stride",
        )
    strides = [known] if known else [max(1, trained // share) for share in SHARES]
    costs = {each: positions_of([longest - trained] * len(corpus.documents), trained, each) for each in strides}
    stride = next((each for each in strides if costs[each] <= rest), strides[-1])
    fed = costs[stride]
    if known is None and fed > rest and options.truncation is None:
        return None, (
            f"truncation is skipped: it would feed {fed:,} tokens, {fed / rest:.0%} of what all other passes feed; "
            "request truncation to measure it"
        )
    try:
        tables = as_trained(trained)
    except RopescaleError as error:
        if asked:
            message = f"{asked} is given, but truncation cannot be measured: {error}"
            raise DataError(message, asked, *error.fields) from error
        return None, f"truncation is skipped: {error}"

    stop = prefix(longest, corpus.has_bos).stop  # of each document, up to the longest length
    plan = plan_pass([stop] * len(corpus.documents), trained, stride, corpus.has_bos, batch_tokens, truncated)
    told = f"truncation at stride {stride:,} takes {fed:,} tokens more ({fed / rest:.0%})"
    return Job(tables, (trained,), plan, stride), told
