"""Perplexity against length, for several schedules over the same tokens.

Under a static schedule the NLL of a token does not depend on what follows it, so one pass at the longest length
answers for every shorter one. Where the rotary tables depend on the length, each length gets the tables that belong
to it, frozen, and lengths whose tables are the same share a pass. Sliding windows (a stride) differ from length to
length, so each length is a pass of its own, frozen at that length also where a document's last window is shorter.

All passes are planned before the first one runs: schedule -> :class:`Job` -> :class:`Plan` -> :class:`Batch`.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from ...configs.reading import is_scaled, read_rope
from ...errors import DataError, RopescaleError, RunError
from ...models.patching import configuration_before, evaluating
from ..data import documents as data_documents
from ..data import key_tokens
from ..data.documents import Document, Text
from ..data.key_tokens import KeySpans
from ..data.windows import check_lengths, check_stride, prefix, sliding
from ..parallel.processes import Group, Team, World, owners
from ..results.bootstrap import RESAMPLES
from ..results.result import Divergence, Pass, Result, short_length, writable_folder
from . import comparing, fingerprints, memory, protocols, resuming
from .batches import Batch, Cost, Plan, plan_pass
from .comparing import Comparison
from .executor import Executor, Scored
from .progress import Progress, duration
from .resuming import Shelf, Store
from .scoring import LOGITS_BYTES, SCORING, Scorer
from .treatments import AS_IS, Treatment, label, patches_in, treatments

__all__ = ["AS_IS", "Options", "Run", "Treatment", "label", "patches_in", "perplexity", "treatments"]

LOG = logging.getLogger(__name__)

Key = tuple[str, ...]
"""Of a pass: the hashes of its rotation and of its plan. Of a comparison, those of both rotations and of its plan."""


def perplexity(
    model: Any,
    documents: Iterable[Any],
    lengths: int | str | Iterable[int | str],
    schedules: Iterable[Any] = (AS_IS,),
    *,
    tokenizer: Any = None,
    baseline: Any = None,
    bos: str | int = "auto",
    out: str | Path | None = None,
    fresh: bool = False,
    **options: Any,
) -> Result:
    """Perplexity of ``model`` at every length, under every schedule, on the same tokens.

    Each schedule is patched in and reverted bit for bit. ``as-is`` (the model as it comes) always runs, and is the
    baseline of the paired comparison unless ``baseline`` says otherwise.

    Args:
        model: a causal language model of transformers, possibly compiled or PEFT-wrapped.
        documents: lists of token ids (fed as they are; BOS only if ``bos`` is an id or there is a tokenizer with
            one), strings or :class:`Text` (with ``tokenizer``), or :class:`Document`.
        lengths: positions the model sees, BOS included; one or several, as numbers or like ``"2k,4k"``.
        schedules: specs like "yarn:factor=8", or schedule objects.
        tokenizer: encodes strings, and says what BOS is.
        bos: "auto" (the tokenizer's, if it has one), "yes", "no", or an id.
        out: a folder for the result, and for every batch as soon as it is finished: the same call again continues
            where this one was interrupted, see :mod:`ropescale.evals.running.resuming`.
        fresh: measure anew what is stored in ``out``.
        options: the fields of :class:`Options`, such as ``stride``.

    Raises:
        DataError: no document is long enough, lengths or a stride that cannot be, ids outside the vocabulary.
        ScheduleError: a schedule that does not exist or does not fit; raised before anything is measured.
        RunError: NaN or infinite logits, or a window that does not fit into memory.
        CheckpointError: ``out`` cannot be written, is not ours, or another process is writing into it.
    """
    run = Run(model, documents, lengths, schedules, tokenizer, baseline, bos, Options(**options))
    if out is None:
        run.run()
        return run.result()
    folder = writable_folder(out)
    with resuming.opened(folder, fresh) as kept:
        run.run(kept)
        result = run.result()
        result.save(folder)
    return result


@dataclasses.dataclass(frozen=True)
class Options:
    """What else a measurement can be told.

    Attributes:
        protocol: "ropescale", or one of the published recipes in :mod:`ropescale.evals.running.protocols`, which have
            a stride of their own where none is given.
        stride: None measures the first L positions of each document; a number measures whole documents in sliding
            windows of L positions, each this many tokens after the one before.
        min_tokens: skip documents with fewer tokens.
        max_docs: measure on at most this many documents.
        batch_tokens: feed windows together up to this many positions (at least one window); None estimates what
            fits into memory.
        logits_bytes: budget for one block of fp32 logits.
        short_context: compare each schedule's predictions with the baseline's at the largest length up to the trained
            one, which takes each of them, and the baseline, once more through the model at that length.
        seed: of the bootstrap intervals; the perplexities do not depend on it.
        repeat_distance: how many tokens back something must be for what repeats it to count as a far repeat; None is
            the trained length.
        key_spans: a file of `ropescale keys`, or what it holds: the perplexity of those tokens is given, too.
        patching: keyword arguments of :func:`ropescale.patch`, such as ``layers`` or ``on_top``.
        source: what the documents are called in the results.
        path: the checkpoint's folder, whose files are then fingerprinted; else the live parameters are.
        progress: notes on stderr, and a bar where that is a terminal, else a line a minute.
        team: the processes that share each window, where one is too long for one device.
    """

    protocol: str = protocols.ROPESCALE
    stride: int | None = None
    min_tokens: int = 0
    max_docs: int | None = None
    batch_tokens: int | None = None
    logits_bytes: int = LOGITS_BYTES
    short_context: bool = True
    seed: int = 0
    repeat_distance: int | None = None
    key_spans: str | Path | KeySpans | None = None
    patching: dict[str, Any] = dataclasses.field(default_factory=dict)
    source: str | None = None
    path: str | Path | None = None
    progress: bool = False
    team: Team | None = None

    def __post_init__(self) -> None:
        if self.stride is None:
            object.__setattr__(self, "stride", protocols.protocol(self.protocol).stride)
        elif not self.exact and self.stride < 1:
            raise DataError(f"stride {self.stride} is not a whole number of tokens; use 1 or more")
        if self.key_spans is not None and not self.exact:
            raise DataError(f"key tokens are not part of {self.protocol}; leave --key-spans or --protocol out")
        for name in ("batch_tokens", "logits_bytes", "max_docs", "repeat_distance"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise DataError(f"{name} must be 1 or more, not {value}")

    @property
    def sharers(self) -> int:
        """How many processes share a window."""
        return 1 if self.team is None else self.team.size

    @property
    def exact(self) -> bool:
        """Whether every token is scored once and weighs the same."""
        return protocols.protocol(self.protocol).exact


@dataclasses.dataclass(frozen=True)
class Job:
    """One pass over every document under one set of rotary tables.

    Attributes:
        treatment: the schedule.
        frozen_at: the length whose tables are live, where they depend on the length.
        lengths: the lengths that are read from it, ascending; the last is the one that is fed.
        plan: its batches.
        table_sha256: of the live tables, as the results show it.
        rotation: a hash of all that the schedule decides; jobs with the same rotation and plan give the same numbers.
    """

    treatment: Treatment
    frozen_at: int | None
    lengths: tuple[int, ...]
    plan: Plan
    table_sha256: str
    rotation: str

    @property
    def key(self) -> Key:
        """What the numbers depend on, the model and the tokens being given."""
        return self.rotation, self.plan.sha256

    @property
    def facts(self) -> dict[str, Any]:
        """The key in words, as the store keeps it."""
        return {"length": self.lengths[-1], "rotation": self.rotation, "plan": self.plan.sha256}


class Run:
    """A measurement that can be interrupted: :meth:`result` holds the passes that are complete."""

    def __init__(
        self,
        model: Any,
        documents: Iterable[Any],
        lengths: int | str | Iterable[int | str],
        schedules: Iterable[Any],
        tokenizer: Any,
        baseline: Any,
        bos: str | int,
        options: Options,
    ) -> None:
        self.model, self.options, self.bos_option = model, options, bos
        self.lengths = check_lengths(lengths)
        self.treatments, self.baseline = treatments(schedules, baseline)
        pool, self.bos = protocols.placed(options.protocol, as_documents(documents, tokenizer), bos, tokenizer)
        self.bos_once = protocols.bos_once(options.protocol, bos, tokenizer)
        self.documents, self.skipped = select_documents(pool, self.lengths, self.has_bos, options)
        self.scorer = _scorer(model, options)
        spans = options.key_spans
        self.key_spans = spans if spans is None or isinstance(spans, KeySpans) else key_tokens.load(spans)
        if self.key_spans is not None:
            for document in self.documents:
                self.key_spans.marks(document)
        data_documents.check_ids(self.documents, self.scorer.vocabulary, self.bos)
        self.special = data_documents.special_tokens(self.documents, tokenizer)
        self.batch_tokens = options.batch_tokens or options.sharers * memory.default_batch_tokens(
            self.scorer.model, -(-self.lengths[-1] // options.sharers), options.logits_bytes
        )
        self.passes: list[Pass] = []
        self.divergences: list[Divergence] = []
        self._plans: dict[int, Plan] = {}
        self._tables: dict[str, dict[str, Any]] = {}
        self._todo, self._fed, self._seconds = 0, 0, 0.0

    def run(self, kept: Store | None = None, group: Group | None = None) -> None:
        """Measures every schedule; what is complete is in :attr:`passes` even when this is interrupted.

        Args:
            kept: finished batches are taken from it and put into it.
            group: the processes that share the work; only the leader's :attr:`passes` are complete then.
        """
        kept, group = kept or Store(), group or Group(World())
        self.batch_tokens = group.from_leader(self._same_batch_tokens(kept.last))
        with evaluating(self.scorer.model):
            jobs = self.jobs()
            compared = self.comparisons(jobs)
            several = comparing.to_run(compared)
            shelves: dict[Key, Shelf] = {job.key: kept.shelf(self.facts | job.facts, job.plan) for job in jobs}
            for each in several:
                shelves[each.key] = kept.shelf(self.facts | each.facts, each.plan, comparing.VALUES)
            self._agree([*jobs, *several], shelves, group)
            self._announce(jobs, several, shelves, kept.last)
            self._announce_left_out(kept.last)
            if group.world.leads:
                kept.begin(self._about)
            executor = Executor(self.scorer, self.documents, self.bos, self._warn)
            left = _shared(jobs, shelves, group.world)
            beside = _owned(comparing.left(several, shelves), group.world)
            self._todo = sum(batch.fed for batches in left.values() for batch in batches)
            self._todo += (1 + len(several)) * sum(batch.fed for batch in beside)
            first = next((batch for batches in [*left.values(), beside] for batch in batches), None)
            if first is not None:
                executor.check(first)
                self._announce_time(executor, first, [*chain(*left.values()), *beside * (1 + len(several))])
            try:
                for job in jobs:
                    self._measure(job, left.pop(job.key, []), executor, shelves[job.key])
                    if group.world.size == 1:
                        self._finish(job, shelves[job.key])
                self._compare(several, beside, executor, shelves)
            finally:
                self._tell_timing(kept, group.world)
        if group.world.size > 1:
            self._gather(jobs, shelves, group)
        if group.world.leads:
            self.divergences = comparing.finished(compared, shelves)

    def jobs(self) -> list[Job]:
        """Every pass, in order. A schedule that does not fit fails here, before hours of the others."""
        return [job for treatment in self.treatments for job in self._jobs(treatment)]

    def comparisons(self, jobs: Sequence[Job]) -> list[Comparison]:
        """What is run for the short-context cost: every schedule beside the baseline, at one length."""
        length = short_length(self.lengths, trained_length(self.scorer.model))
        if length is None or not self.options.short_context:
            return []
        return comparing.comparisons(jobs, self.baseline, length, self._plan(length))

    def result(self) -> Result:
        """Everything measured so far."""
        options, versions = self.options, fingerprints.versions()
        return Result(
            model=self.model_facts,
            data={
                "source": options.source or "in memory",
                "sha256": data_documents.documents_sha256(self.documents),
                "documents": len(self.documents),
                "tokens": self._positions,
                "skipped": self.skipped,
                **({"special_tokens": self.special} if self.special else {}),
            },
            protocol={
                "name": options.protocol,
                "mode": "prefix" if options.stride is None else "sliding",
                "bos": self.bos_option,
                **({} if self.bos_once is None else {"bos_once": self.bos_once}),
                "stride": options.stride,
                "seed": options.seed,
                "interval": "document-clustered t, 95%",
                "resamples": RESAMPLES,
                "batch_tokens": self.batch_tokens,
            },
            versions=versions,
            passes=self.passes,
            documents=self.documents,
            bos=self.has_bos,
            baseline=self.baseline,
            trained_length=trained_length(self.scorer.model),
            tables={run.table_sha256: self._tables[run.table_sha256] for run in self.passes},
            divergences=self.divergences,
            key_spans=self.key_spans,
            repeat_distance=options.repeat_distance or trained_length(self.scorer.model),
        )

    @functools.cached_property
    def model_facts(self) -> dict[str, Any]:
        """The "model" part of results.json; of the model before any schedule."""
        return fingerprints.describe(self.scorer.model, self.options.path)

    @functools.cached_property
    def facts(self) -> dict[str, Any]:
        """What the numbers of every pass depend on, next to the pass's own facts.

        The versions of torch and transformers are among them: another kernel or another modelling file rounds, or
        computes, differently, and half a result from each would be nobody's result.
        """
        return {
            **{name: self.model_facts[name] for name in ("weights", "config_sha256", "dtype")},
            **fingerprints.arithmetic(self.scorer.model),
            "logits_bytes": self.options.logits_bytes,
            "text": data_documents.documents_sha256(self.documents),
            "tokens": fingerprints.tokens_sha256(self.documents),
            "bos": self.bos,
            "stride": self.options.stride,
            "scoring": SCORING,
            **({"sequence_parallel": self.options.sharers} if self.options.team else {}),  # another rounding
        }

    @property
    def _about(self) -> dict[str, Any]:
        """What the next run compares itself with."""
        return {
            "facts": self.facts,
            "lengths": list(self.lengths),
            "batch_tokens": self.batch_tokens,
            "schedules": [treatment.label for treatment in self.treatments],
        }

    @property
    def has_bos(self) -> bool:
        """Whether BOS is in front of every window."""
        return self.bos is not None

    @property
    def _positions(self) -> int:
        """Tokens of the documents that are looked at, each with its BOS."""
        if self.options.stride is None:
            return len(self.documents) * self.lengths[-1]
        return sum(len(document.ids) + self.has_bos for document in self.documents)

    # --- planning ---

    def _jobs(self, treatment: Treatment) -> list[Job]:
        """All the lengths of one schedule, in as few passes as its tables and the windows allow."""
        apart = self.options.stride is not None
        with treatment.applied(self.model, self.options.patching) as patch:
            if not treatment.depends_on_length(self.model, patch):
                groups = [(length,) for length in self.lengths] if apart else [self.lengths]
                return [self._job(treatment, None, group) for group in groups]
        found: dict[object, Job] = {}
        for length in self.lengths:
            with treatment.applied(self.model, self.options.patching, length):
                job = self._job(treatment, length, (length,))
            same = length if apart else job.rotation
            before = found[same].lengths if same in found else ()
            found[same] = dataclasses.replace(job, lengths=(*before, length))
        return list(found.values())

    def _job(self, treatment: Treatment, frozen_at: int | None, lengths: tuple[int, ...]) -> Job:
        """A pass under the tables that are live now."""
        table = fingerprints.table_sha256(self.scorer.model)
        self._tables[table] = fingerprints.live_tables(self.scorer.model)
        rotation = fingerprints.rotation_sha256(self.scorer.model)
        return Job(treatment, frozen_at, lengths, self._plan(lengths[-1]), table, rotation)

    def _plan(self, length: int) -> Plan:
        if length not in self._plans:
            tokens = [len(document.ids) for document in self.documents]
            slide = sliding if self.options.exact else protocols.published_windows
            stride = self.options.stride
            self._plans[length] = plan_pass(tokens, length, stride, self.has_bos, self.batch_tokens, slide)
        return self._plans[length]

    # --- executing ---

    def _agree(self, jobs: Sequence[Job | Comparison], shelves: Mapping[Key, Shelf], group: Group) -> None:
        """Every process must measure the same, and know what any of them has on its shelves.

        Raises:
            RunError: they do not: other files, other versions or another table on one of them.
        """
        planned = (self.facts, [job.facts for job in jobs])
        if any(other != planned for other in group.from_all(planned)):
            raise RunError("the processes do not measure the same; give all of them the same files and versions")
        for found in group.from_all({key: shelf.batches for key, shelf in shelves.items()}):
            _merge(shelves, found)

    def _gather(self, jobs: Sequence[Job], shelves: Mapping[Key, Shelf], group: Group) -> None:
        """Brings every process's batches to the leader, and finishes the passes there."""
        for found in group.to_leader({key: shelf.batches for key, shelf in shelves.items()}):
            _merge(shelves, found)
        if group.world.leads:
            for job in jobs:
                self._finish(job, shelves[job.key])

    def _measure(self, job: Job, batches: Sequence[Batch], executor: Executor, shelf: Shelf) -> None:
        """Batches of one pass, or none: what is on the shelf already, of the same tables and windows, is not run."""
        if batches:
            with job.treatment.applied(self.model, self.options.patching, job.frozen_at):
                self._execute(job, batches, executor, shelf)

    def _finish(self, job: Job, shelf: Shelf) -> None:
        """A pass whose batches are all on the shelf, for the results."""
        scored = shelf.batches
        again = any(run.key == job.key for run in self.passes)
        self.passes.append(
            Pass(
                schedule=job.treatment.label,
                table_sha256=job.table_sha256,
                lengths=job.lengths,
                nll=job.plan.assembled({number: each.nll for number, each in scored.items()}),
                forward_passes=0 if again else job.plan.cost.forwards,
                cost=job.plan.cost,
                split_batches=sum(each.parts > 1 for each in scored.values()),
                key=job.key,
            )
        )

    def _execute(self, job: Job, batches: Sequence[Batch], executor: Executor, shelf: Shelf) -> None:
        """Scores batches under the tables that are live now, one after the other onto the shelf."""
        title, total = f"{job.treatment.label} at {job.lengths[-1]:,}", sum(batch.fed for batch in batches)
        before = [each.nll for each in shelf.batches.values()]
        with Progress(title, total, self.options.progress, before) as progress:
            for batch in batches:
                start = time.perf_counter()
                scored = self._scored(job, batch, executor)
                shelf.put(batch.number, scored)
                self._count(batch.fed, time.perf_counter() - start)
                progress.add(batch.fed, scored.nll)

    def _compare(
        self, several: Sequence[Comparison], batches: Sequence[Batch], executor: Executor, shelves: Mapping[Key, Shelf]
    ) -> None:
        """Batches of the comparisons, the baseline once for all that lack one."""
        total = sum(batch.fed for batch in batches)
        with Progress("short-context cost", total, self.options.progress) as progress:
            for batch in batches:
                start = time.perf_counter()
                missing = [each for each in several if batch.number not in shelves[each.key].batches]
                others = [functools.partial(self._live, each.other) for each in missing]
                found = executor.compare(batch, functools.partial(self._live, missing[0].base), others)
                for each, scored in zip(missing, found, strict=True):
                    shelves[each.key].put(batch.number, scored)
                self._count((1 + len(missing)) * batch.fed, time.perf_counter() - start)
                progress.add(batch.fed)

    @contextmanager
    def _live(self, job: Job) -> Iterator[None]:
        """A job's tables inside; certain to be still there at the end."""
        with job.treatment.applied(self.model, self.options.patching, job.frozen_at):
            yield
            self._check_rotation(job)

    def _scored(self, job: Job, batch: Batch, executor: Executor) -> Scored:
        """A batch, once it is certain that it was scored under the tables that it will be stored under."""
        scored = executor.score(batch)
        self._check_rotation(job)
        return scored

    def _check_rotation(self, job: Job) -> None:
        if fingerprints.rotation_sha256(self.scorer.model) != job.rotation:
            raise RunError(
                f"the rotary tables changed while {job.treatment.label} was measured; a schedule, or code in the "
                "model, that changes them by itself cannot be measured"
            )

    def _count(self, fed: int, seconds: float) -> None:
        """Keeps the time, and says after the first batch of a long run how long it will be."""
        first = not self._fed
        self._fed, self._seconds = self._fed + fed, self._seconds + seconds
        left = (self._todo - self._fed) * self._seconds / self._fed
        if first and left > _LONG_SECONDS:
            self._tell(f"{fed:,} tokens in {seconds:,.1f} s; at this speed {duration(left)} to go")

    # --- saying ---

    def _announce(
        self,
        jobs: Sequence[Job],
        several: Sequence[Comparison],
        shelves: Mapping[Key, Shelf],
        last: Mapping[str, Any],
    ) -> None:
        """What is there already and what the run will cost, before it starts."""
        distinct = list({job.key: job for job in jobs}.values())
        if self.special:
            self._tell(
                f"{self.special:,} tokens of the text are special ones of the tokenizer, as if a text began or ended "
                "there; --split-special-tokens takes them for text"
            )
        batches = sum(len(each.plan.batches) for each in [*distinct, *several])
        done = batches - sum(len(_left(each, shelves[each.key])) for each in [*distinct, *several])
        if done == batches:
            self._tell(f"all {batches} batches are done already; nothing is run")
            return
        if done:
            self._tell(f"resuming: {done} of {batches} batches are done")
        elif changed := self._changes(last):
            kept = "its results replace the old ones, whose batches stay in resume/"
            self._tell(f"starting a new run: {changed}; {kept}")
        if self.options.stride is not None:  # a prefix costs one pass and needs no word
            self._announce_cost(distinct)
        if several:
            self._announce_comparisons(distinct, several)
        widest, sharers = self._widest(jobs), self.options.sharers
        self._tell(memory.described(self.scorer.model, widest, self.options.logits_bytes, sharers))

    def _announce_left_out(self, last: Mapping[str, Any]) -> None:
        left_out = [label for label in last.get("schedules", []) if label not in self._about["schedules"]]
        if left_out:
            self._tell(
                f"the results will be without {', '.join(left_out)}, measured here before; name every schedule that "
                "they should hold, and what is done is not run again"
            )

    def _announce_time(self, executor: Executor, first: Batch, batches: Sequence[Batch]) -> None:
        """How long a long run will be, from a pass that is short beside it; the first batch will tell more exactly."""
        fed = min(_TIMED, first.positions)
        if self.options.sharers > 1 or self._todo < _TIMED_SHARE * fed:
            return
        model, taken = self.scorer.model, executor.seconds(first, fed)
        if taken is None:
            return
        work = sum(batch.fed * memory.work(model, batch.positions) for batch in batches)
        expected = taken * work / (fed * memory.work(model, fed))
        if expected > _LONG_SECONDS:
            self._tell(f"time: an estimated {duration(expected).removeprefix('about ')}, by a pass of {fed:,} tokens")

    def _widest(self, jobs: Sequence[Job]) -> Batch:
        """The batch that takes most memory by the estimate."""
        batches = (batch for job in jobs for batch in job.plan.batches)
        return max(batches, key=lambda batch: (batch.fed, batch.positions))

    def _announce_cost(self, distinct: Sequence[Job]) -> None:
        if not self.options.exact:
            self._warn_of_missed({job.lengths[-1]: job.plan.cost.scored for job in distinct})
        for job in sorted(distinct, key=lambda job: job.lengths[-1]):
            self._tell(f"{job.treatment.label} at {job.lengths[-1]:,}: {_described(job.plan.cost)}")
        total = sum(job.plan.cost.positions for job in distinct)
        times = sum(job.plan.cost.times_one_pass for job in distinct)
        self._tell(f"in all {total:,} tokens to feed, {times:,.1f} times the documents")

    def _warn_of_missed(self, scored: Mapping[int, int]) -> None:
        """Tokens that the windows of a published protocol leave out, by length, though something comes before them."""
        tokens = sum(len(each.ids) - (not self.has_bos) for each in self.documents)
        for length, count in scored.items():
            if count < tokens:
                self._warn(
                    f"{self.options.protocol} at {length:,}, stride {self.options.stride:,}: {tokens - count:,} of "
                    f"{tokens:,} tokens are never scored, as with the published script"
                )

    def _announce_comparisons(self, distinct: Sequence[Job], several: Sequence[Comparison]) -> None:
        fed = (1 + len(several)) * several[0].plan.cost.positions
        share = fed / sum(job.plan.cost.positions for job in distinct)
        self._tell(
            f"the short-context cost at {several[0].length:,} takes {fed:,} tokens more ({share:.0%}); "
            "--no-short-context leaves it out"
        )

    def _changes(self, last: Mapping[str, Any]) -> str:
        """How this run differs from the last one in the same folder; nothing where there was none."""
        if not last:
            return ""
        before, now = last | last.get("facts", {}), self._about | self.facts
        changed = [name for name in now if name not in ("facts", "schedules") and before.get(name) != now[name]]
        return ", ".join(_change(name, before.get(name), now[name]) for name in changed)

    def _same_batch_tokens(self, last: Mapping[str, Any]) -> int:
        """The last run's estimate where it still fits the same numbers: another estimate would be another plan."""
        recorded = last.get("batch_tokens")
        if self.options.batch_tokens is None and recorded and last.get("facts") == self.facts:
            return int(recorded)
        return self.batch_tokens

    def _tell_timing(self, kept: Store, world: World) -> None:
        """How long this process took; apart from the results, which are the same however they were come by."""
        if not self._fed:
            return
        speed = self._fed / self._seconds
        self._tell(f"{self._fed:,} tokens in {self._seconds:,.1f} s, {speed:,.0f} tokens/s")
        place = {"device": str(self.scorer.device), "threads": torch.get_num_threads()}
        if world.size > 1:
            place |= {"rank": world.rank, "processes": world.size}
        if world.team > 1:
            place |= {"team": world.team}
        if world.writes:
            kept.note({"tokens": self._fed, "seconds": self._seconds, "tokens_per_second": speed, **place})

    def _tell(self, line: str) -> None:
        if self.options.progress:
            tqdm.write(line, file=sys.stderr)
        else:
            LOG.info(line)

    def _warn(self, line: str) -> None:
        """What the user should know, past the progress bar where there is one."""
        if self.options.progress:
            tqdm.write(line, file=sys.stderr)
        else:
            LOG.warning(line)


def _shared(jobs: Sequence[Job], shelves: Mapping[Key, Shelf], world: World) -> dict[Key, list[Batch]]:
    """By job, the batches that are left and that this process's team is to score; each batch is some team's."""
    distinct = {job.key: job for job in jobs}
    left = [(key, batch) for key, job in distinct.items() for batch in _left(job, shelves[key])]
    mine: dict[Key, list[Batch]] = {}
    for (key, batch), owner in zip(left, owners([batch for _, batch in left], world.teams), strict=True):
        if owner == world.rank // world.team:
            mine.setdefault(key, []).append(batch)
    return mine


def _owned(batches: Sequence[Batch], world: World) -> list[Batch]:
    """The batches of one plan that this process's team is to score."""
    mine = world.rank // world.team
    return [batch for batch, owner in zip(batches, owners(batches, world.teams), strict=True) if owner == mine]


def _scorer(model: Any, options: Options) -> Scorer:
    if options.team is None:
        return Scorer(model, options.logits_bytes)
    from ..parallel.sequence import ShardedScorer

    return ShardedScorer(model, options.team, options.logits_bytes)


def _merge(shelves: Mapping[Key, Shelf], found: Mapping[Key, Mapping[int, Scored]]) -> None:
    """What another process scored; not written again, because that process has."""
    for key, batches in found.items():
        shelves[key].batches |= batches


_LONG_SECONDS = 60

_TIMED, _TIMED_SHARE = 512, 200
"""Tokens that are fed to estimate the time (three times), where two hundred times as many and more are to come."""


def _left(job: Job | Comparison, shelf: Shelf) -> list[Batch]:
    """The batches that are not on the shelf, in order."""
    return [batch for batch in job.plan.batches if batch.number not in shelf.batches]


_CHANGED = {
    "weights": "the weights differ",
    "config_sha256": "config.json differs",
    "text": "the text differs",
    "tokens": "the tokens differ",
}


def _change(name: str, before: Any, now: Any) -> str:
    plain = name.replace("_", "-")
    return _CHANGED.get(name) or f"{plain} {_value(before)} became {_value(now)}"


def _value(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value).lower()


def _described(cost: Cost) -> str:
    return (
        f"{cost.forwards:,} window{'s' * (cost.forwards != 1)}, {cost.positions:,} tokens fed for {cost.scored:,} "
        f"scored ({cost.useful_fraction:.1%}), {cost.times_one_pass:,.1f} times one pass"
    )


def select_documents(
    documents: Sequence[Document], lengths: Sequence[int], bos: bool, options: Options
) -> tuple[list[Document], dict[str, int]]:
    """The documents to measure on, and how many were skipped and why.

    Without a stride they are the ones that reach the longest length, the same for every length. Sliding windows take
    every document with a token to score, but one must reach the longest length, or nothing would be measured there.

    Raises:
        DataError: none is long enough, or the stride does not fit the lengths.
    """
    if options.exact:
        check_stride(options.stride, lengths)
    needed, whole = tokens_needed(lengths, bos, options), prefix(lengths[-1], bos).stop
    kept, skipped = data_documents.select(documents, needed, max_docs=options.max_docs, one_with=whole)
    if not options.exact:
        protocols.check_windows(options.protocol, kept, lengths, options.stride or 1, bos)
    return kept, skipped


def tokens_needed(lengths: Sequence[int], bos: bool, options: Options) -> int:
    """How many tokens a document must have to be measured on."""
    window = prefix(lengths[-1], bos)
    return max(window.stop if options.stride is None else window.scored + 1, options.min_tokens)


def as_documents(documents: Iterable[Any], tokenizer: Any) -> list[Document]:
    """Texts tokenized, ids wrapped, documents as they are.

    Raises:
        DataError: texts without a tokenizer, or a mixture.
    """
    given: list[Any] = [documents] if isinstance(documents, (str, Text)) else list(documents)
    texts = [isinstance(document, (str, Text)) for document in given]
    if any(texts):
        if not all(texts):
            raise DataError("documents are a mixture of texts and token ids; give one or the other")
        if tokenizer is None:
            raise DataError("documents are texts; give tokenizer= to encode them, or give token ids")
        return data_documents.tokenize(given, tokenizer)
    made = [isinstance(document, Document) for document in given]
    return given if made and all(made) else data_documents.from_ids(given)


def trained_length(model: Any) -> int | None:
    """The context the model was trained at, as far as its configuration says so.

    Scaling that a model comes with is its makers', who trained it with that, up to ``max_position_embeddings``; the
    original length, which `ropescale inspect` shows beside it, is what schedules count from. Scaling of ours, in memory
    or in the folder that the model was loaded from, does not count.
    """
    try:
        ropes = read_rope(configuration_before(model)).values()
    except RopescaleError:  # no rotation that can be read, such as learned positions
        config = model.config.get_text_config() if hasattr(model.config, "get_text_config") else model.config
        return getattr(config, "max_position_embeddings", None)
    return max(rope.max_length if is_scaled(rope) else rope.original_length for rope in ropes)
