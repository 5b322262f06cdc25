"""Learns a schedule with the weights frozen, and compares it with what needs no search, on the same windows."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import torch

from ...errors import RopescaleError, RunError
from ...lengths import parse_length
from ...models import patching
from ...models.rotary_modules import evaluating
from ...request import refuse_unknown
from ..data.chats import Given
from ..data.sources import TextSource
from ..metrics.stored import AS_IS
from ..parallel.processes import Group, World
from ..running import fingerprints
from ..running.corpus_run import SHARES
from ..running.preparing import Checkpoint, refuse_endless, tell_left_out
from ..running.progress import Notes, Progress, duration
from ..running.runner import LONG_SECONDS, carry_out
from ..running.variants import AsTrained, Variant, passes_of, trained_length
from ..store import Facts, Store
from . import gradient
from .gradient import Check, Journal, Query, QueryLosses
from .learner import Evaluator, Learner, LiveTables
from .metrics import FOUND, TRUNCATION
from .options import SearchKeywords, SearchOptions, plan_of_start
from .prompts import Feed, lengths_to, make_feed
from .results import Learned, SearchResult, files_of, spec_line
from .search_space import Point, space_of
from .windows import TextFeed

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


SEARCHING = 2
"""Raised whenever the same model, text and options would give other answers, so that kept ones are not reused."""


def search(
    model: PreTrainedModel,
    documents: Iterable[Given] | Mapping[str, Iterable[Given]] | None,
    target_length: int | str,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    bos: str | int = "auto",
    out: str | Path | None = None,
    fresh: bool = False,
    force: bool = False,
    **options: Unpack[SearchKeywords],
) -> SearchResult:
    """Learns the schedule under which ``model`` predicts this text best at ``target_length``, weights frozen.

    It starts at YaRN's default. Of the documents, some are held out to choose the schedule that does best on them, and
    where there are enough, others to judge it beside YaRN's default, the model as it is, and truncation.

    Args:
        model: a causal language model of transformers, possibly compiled or PEFT-wrapped.
        documents: as for :func:`ropescale.evals.perplexity`; each that is as long as ``target_length`` gives windows.
            None with ``objective="keys"``, which makes prompts of its own.
        target_length: positions that the model is to see, BOS included.
        tokenizer: encodes strings, and says what BOS is.
        bos: "auto" (the tokenizer's, if it has one), "yes", "no", or an id.
        out: a file for the schedule, ``factors.json``; beside it, a folder for the run, named ``factors-search``. Every
            step is kept there: the same call again continues where this one was interrupted.
        fresh: search again what is kept.
        force: replace results in ``out`` of another text or model, or more than these.
        options: the fields of :class:`.options.SearchOptions`, such as ``objective`` or ``budget_tokens``.

    Raises:
        DataError: too little text, a budget too small for a step, or options that cannot be.
        ConfigError, ScheduleError: the model has no rotation that YaRN can change, or is longer than the target.
        RunError: NaN or infinite logits.
        CheckpointError: ``out`` cannot be written, is not ours, or another process is writing there.
    """
    refuse_unknown(
        "ropescale.evals.search",
        options,
        ("tokenizer", "bos", "out", "fresh", "force", *SearchKeywords.__annotations__),
    )
    file, folder = (None, None) if out is None else files_of(out)
    chosen, target = SearchOptions(**options), parse_length(target_length)
    plan = plan_of_start(
        patching.configuration_before(model, chosen.patching.get("on_top", False)), target, chosen.patching
    )
    run = SearchRun(model, make_feed(documents, tokenizer, lengths_to(plan, target), bos, chosen), chosen)
    run.file = file
    return carry_out(run, folder, fresh, force=force)


@dataclass(frozen=True)
class MeasuringPass:
    """One pass over the windows that are measured.

    Attributes:
        names: of the schedules, one for each point of the query.
        lengths: those that are read from the pass; the last one is fed.
        query: a point without numbers leaves the tables that are live.
        within: makes the tables live.
    """

    names: Sequence[str]
    lengths: Sequence[int]
    query: Query
    within: Callable[[], AbstractContextManager[None]]


class SearchRun:
    """A search that can be interrupted.

    Args:
        compared: whether the found schedule is measured beside the start, the model as it is, and truncation.

    Attributes:
        curves: by schedule and length, the NLL of each measured window in nats per token.
    """

    def __init__(self, model: PreTrainedModel, feed: Feed, options: SearchOptions, compared: bool = True) -> None:
        self.options, self.feed, self.notes, self.compared = options, feed, Notes.of(options.progress), compared
        self.target = feed.target
        config = patching.configuration_before(model, options.patching.get("on_top", False))
        self.plan = plan_of_start(config, self.target, options.patching)
        self.space = space_of(self.plan, self.target, options)
        self.lengths = lengths_to(self.plan, self.target)
        self.learner = Learner(model, options.logits_bytes)
        feed.check_ids(self.learner.vocabulary)
        self.live = LiveTables(self.learner.model, self.plan)
        self.checks: list[Check] = []
        self.steps: list[tuple[int, float]] = []
        self.curves: dict[str, dict[int, list[float]]] = {}
        self.spent = 0
        self.file: Path | None = None
        self._found: Point | None = None

    @property
    def finished(self) -> str:
        """How much is complete."""
        return f"{len(self.checks)} checks" if self.checks else ""

    @property
    def trained(self) -> int:
        """The trained length."""
        return self.lengths[0]

    @cached_property
    def beside(self) -> int:
        """The tokens that the comparison with the start, the model as it is and truncation takes."""
        return sum(self.feed.tokens(each.query) for each in self._comparisons(self.space.start))

    def run(self, store: Store | None = None, group: Group | None = None) -> None:
        """Searches; answers that the store holds are not computed again."""
        group = group or Group(World())
        journal = Journal(store if store and group.world.leads else Store(), self.facts)
        kept = group.from_leader(journal.kept)
        journal.left = iter(kept)
        self.notes.tell(
            f"search: gradient over {len(self.space.names)} numbers, at most {self.feed.most:,} tokens "
            f"in {self.feed.about}" + (f"; {self.beside:,} more to measure it" if self.beside else "")
        )
        if kept:
            self.notes.tell(f"resuming: {len(kept)} answers are kept")
        if store is not None and group.world.leads and self.compared:
            store.begin({"kind": "search", "facts": self.facts})
        texts = self.feed.texts(self.lengths, self.options.within)
        evaluator = Evaluator(self.learner, self.live, self.space, texts, group)
        shown = self.notes.shown and group.world.leads
        try:
            with evaluating(self.learner.model):
                with self.live.patched():
                    with torch.inference_mode():
                        self.learner.check(texts.held_out[0].pieces(None)[0].ids)
                    self._found = self._search(evaluator, journal, shown)
                self._compare(self._found, evaluator, journal, shown)
        except BaseException:
            folder = journal.store.folder
            if folder is not None and journal.kept:
                steps = f"{len(journal.kept)} steps are kept in {folder.parent}"
                self.notes.tell(f"the search stopped; {steps}; the same command continues")
            raise

    def _search(self, evaluator: Evaluator, journal: Journal, shown: bool) -> Point:
        """Answers the queries of the descent until it returns its point."""
        descent, left, timed = gradient.search(self.space, self.feed.allowance), self.feed.most, 0
        query = next(descent)
        with Progress("search: gradient", self.feed.most, shown) as progress:
            while True:
                tokens, answer = self.feed.tokens(query), journal.replayed(query)
                if answer is None:
                    start = time.perf_counter()
                    answer = evaluator.answer(query)
                    seconds, left = time.perf_counter() - start, left - tokens
                    timed += not query.held_out  # the first step also pays for what is loaded and compiled once
                    if timed == 2 and not query.held_out and left * seconds / tokens > LONG_SECONDS:
                        rest = duration(left * seconds / tokens)
                        self.notes.tell(f"{tokens:,} tokens in {seconds:,.1f} s; at this speed at most {rest} to go")
                    journal.add(query, answer)
                    progress.say(self._losses(query, answer))
                    progress.add(tokens)
                self.spent += tokens
                for point, mean in zip(query.points, answer.means, strict=True):
                    if query.held_out:
                        self.checks.append(Check(self.spent, point, mean))
                    else:
                        self.steps.append((self.spent, mean))
                try:
                    query = descent.send(answer)
                except StopIteration as end:
                    return end.value

    def _losses(self, query: Query, answer: QueryLosses) -> str:
        """Returns the loss of this step, and the held-out one at first and at its lowest."""
        held = [check.loss for check in self.checks]
        step = f"loss {min(answer.means):.4f}{' held out' if query.held_out else ''}"
        return f"{step} (held out {held[0]:.4f} at first, {min(held):.4f} at best)" if held else step

    # --- comparing ---

    def _compare(self, found: Point, evaluator: Evaluator, journal: Journal, shown: bool) -> None:
        """Measures the found schedule and its baselines; this is not part of the budget."""
        if not self.compared:
            return
        with Progress("what was found", self.beside, shown) as progress:
            for each in self._comparisons(found):
                answer = journal.replayed(each.query)
                if answer is None:
                    with each.within():
                        answer = evaluator.answer(each.query)
                    journal.add(each.query, answer)
                    progress.add(self.feed.tokens(each.query))
                for name, losses, windows in zip(each.names, answer.losses, answer.by_length, strict=True):
                    for length in each.lengths:
                        place = self.lengths.index(length)
                        values = list(losses) if each.query.stride else [noted[place] for noted in windows]
                        self.curves.setdefault(name, {})[length] = values

    def _comparisons(self, found: Point) -> list[MeasuringPass]:
        """Returns the passes that are compared where these numbers were found."""
        if not self.compared:
            return []
        pair = self._comparison((self.start, FOUND), self.lengths, self.live.patched, (self.space.start, found))
        own = self._comparison((FOUND,), (self.trained,), self.live.patched, (self.space.base,))
        kept = [own] if self.options.keep_short else []
        return [*self._as_is, pair, *kept, *([self._truncation] if self._truncation else [])]

    def _comparison(
        self,
        names: Sequence[str],
        lengths: Sequence[int],
        within: Callable[[], AbstractContextManager[None]],
        points: tuple[Point, ...] = ((),),
        stride: int | None = None,
    ) -> MeasuringPass:
        fed = self.trained if stride else lengths[-1]
        query = Query(points, self.feed.measured, held_out=True, positions=fed, stride=stride)
        return MeasuringPass(names, lengths, query, within)

    @cached_property
    def _as_is(self) -> list[MeasuringPass]:
        """One pass at the longest length, or one for each table where it follows the length."""
        passes = passes_of(Variant(self.learner.model, AS_IS, {}).tables(self.lengths))
        return [self._comparison((AS_IS,), each.lengths, each.tables.live) for each in passes]

    @cached_property
    def _truncation(self) -> MeasuringPass | None:
        """Truncation at the smallest stride that costs no more than all the rest; None where it cannot be."""
        model, trained = self.learner.model, self.trained
        if trained_length(model) != trained:
            return None
        try:
            tables = AsTrained(model).tables([trained])[trained]
        except RopescaleError:
            return None
        rest = self.feed.most + sum(self.feed.tokens(each.query) for each in self._as_is)
        strides = [max(1, trained // share) for share in SHARES]
        tried = [self._comparison((TRUNCATION,), (self.target,), tables.live, stride=stride) for stride in strides]
        return next((each for each in tried if self.feed.tokens(each.query) <= rest), tried[-1])

    @property
    def _truncation_stride(self) -> int | None:
        return self._truncation.query.stride if self._truncation else None

    # --- the record ---

    def planned(self) -> dict[str, Any]:
        """Returns results.json as far as it is known before the run."""
        return {"model": self.model_facts, "data": self.feed.data, "protocol": self._protocol}

    def result(self) -> SearchResult:
        """Returns what was found.

        Raises:
            RunError: the search was stopped before it found anything.
        """
        if self._found is None:
            raise RunError("the search was stopped before its end; the same call again continues")
        found = next(check for check in reversed(self.checks) if check.point == self._found)
        learned = Learned(self.plan, self.space, found.point)
        return SearchResult(
            model=self.model_facts,
            data=self.feed.data,
            protocol=self._protocol,
            versions=fingerprints.versions(),
            start=self.start,
            spec=spec_line(learned.schedule),
            lengths=self.lengths,
            names=[self.feed.names[number] for number in self.feed.measured],
            proved=self.proved,
            checks=self.checks,
            found=found,
            steps=self.steps,
            tables=learned.tables,
            spent=self.spent,
            curves=self.curves,
            beside=self.beside,
            learned=learned,
            file=self.file,
        )

    @property
    def proved(self) -> bool:
        """Whether the windows that are measured chose nothing."""
        return self.feed.measured[0] >= self.feed.allowance.held_out

    @property
    def start(self) -> str:
        """The schedule that the search starts at: YaRN's default, or with scale 1 where there is no other."""
        scales = self.space.tables(torch.tensor(self.space.start, dtype=torch.float64))
        usual = all(math.isclose(float(s), self.plan.tables[key].attention_scale) for key, (_, s) in scales.items())
        return f"yarn:factor={self.target / self.trained:g}{'' if usual else ',attention_factor=1'}"

    @property
    def _protocol(self) -> dict[str, object]:
        options, chose = self.options, self.feed.allowance.held_out
        named = ("seed", "budget_tokens", "within", "keep_short", "engine")
        return {
            "name": "ropescale",
            "method": "gradient",
            **{name: getattr(options, name) for name in named},
            "numbers": len(self.space.names),
            "found": dict(zip(self.space.names, self._found, strict=True)) if self._found else {},
            "target_length": self.target,
            "trained_length": self.trained,
            "bos": self.feed.bos_option,
            "held_out": self.feed.names[:chose],
            "judged": self.feed.names[chose:],
            **({"truncation_stride": self._truncation_stride} if self.compared else {}),
            **self.feed.said,
        }

    @cached_property
    def model_facts(self) -> fingerprints.ModelFacts:
        """The model before any schedule."""
        return fingerprints.describe(self.learner.model, self.options.path)

    @cached_property
    def facts(self) -> Facts:
        """All that the answers depend on."""
        options = self.options
        named = ("budget_tokens", "seed", "numbers", "keep_short", "engine", "within", "logits_bytes")
        return {
            **{name: self.model_facts[name] for name in ("weights", "config_sha256", "dtype")},
            **fingerprints.arithmetic(self.learner.model),
            **{name: getattr(options, name) for name in named},
            "patching": {key: value for key, value in options.patching.items() if value is not None},
            "target_length": self.target,
            **self.feed.facts,
            "searching": SEARCHING,
        }


def prepare(
    checkpoint: Checkpoint,
    source: TextSource | None,
    target: int,
    bos: str | int,
    options: SearchOptions,
    here: World,
    file: Path | None = None,
) -> SearchRun:
    """Prepares a search; ``file`` is where the schedule is to be written, ``source`` None where nothing is read.

    Raises:
        RopescaleError: whatever cannot be read or searched.
    """
    if source is not None:
        refuse_endless(source, options.max_docs)
        options = dataclasses.replace(options, split_special_tokens=source.split_special_tokens)
    plan = plan_of_start(checkpoint.config, target, options.patching)
    space_of(plan, target, options)
    texts, tokenizer, notes = source and source.texts(), checkpoint.tokenizer(), Notes.of(options.progress)
    options = options if source is None else dataclasses.replace(options, source=source.name)
    found = make_feed(texts, tokenizer, lengths_to(plan, target), bos, options)
    checkpoint.warn(notes)
    if source is not None and isinstance(found, TextFeed):
        tell_left_out(source, found.corpus, notes)
    run = SearchRun(checkpoint.model(here), found, dataclasses.replace(options, path=checkpoint.folder))
    run.file = file
    return run
