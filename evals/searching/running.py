"""What a search found, beside what there is without it, on the same windows.

Learns a schedule with the model's weights frozen.

Prepares a search from names: reads and checks everything cheap first, and the weights last.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import torch

from ...errors import RopescaleError, RunError
from ...keywords import refuse_unknown
from ...lengths import parse_length
from ...models import patching
from ...models.rotary_modules import evaluating
from ..data.chats import Given
from ..data.sources import TextSource
from ..metrics.stored import AS_IS
from ..parallel.processes import Group, World
from ..running import fingerprints
from ..running.preparing import Checkpoint, refuse_endless, tell_left_out
from ..running.progress import Notes, Progress, duration
from ..running.runner import LONG_SECONDS, carry_out
from ..running.truncating import SHARES
from ..running.variants import AsTrained, Variant, trained_length
from ..store import Facts, Store
from . import gradient
from .gradient import Answer, Check, Journal, Method, Query
from .learner import Evaluator, Learner, LiveTables
from .metrics import FOUND, TRUNCATION
from .options import SearchKeywords, SearchOptions
from .prompts import Feed, lengths_to, make_feed
from .results import Learned, SearchResult, files_of, spec_line
from .search_space import Point, Space, space_of
from .starting import plan_of_start
from .windows import TextFeed

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class Part:
    """A question, and what is read from the answer.

    Attributes:
        names: of the schedules, one for each point.
        lengths: those that are read from it; the last one is fed.
        query: the question; a point without numbers leaves the tables that are live.
        within: makes the tables live.
    """

    names: Sequence[str]
    lengths: Sequence[int]
    query: Query
    within: Callable[[], AbstractContextManager[None]]


class Judging:
    """Measures the start, what was found, the model as it is, and truncation.

    Args:
        start: the name of the schedule that the search started at.
        lengths: where the losses are wanted, ascending; the first is the trained one.
        kept: whether the model's own table is kept up to the trained length.

    Attributes:
        curves: by schedule and length, the NLL of each window in nats per token; empty until it is known.
    """

    def __init__(
        self, live: LiveTables, space: Space, start: str, lengths: Sequence[int], feeding: Feed, kept: bool
    ) -> None:
        self._live, self._space, self._start, self._lengths, self._kept = live, space, start, lengths, kept
        self._feeding = feeding
        self.curves: dict[str, dict[int, list[float]]] = {}

    def parts(self, found: Point) -> list[Part]:
        """Returns what is asked where these numbers were found."""
        trained, space = self._lengths[0], self._space
        searched = self._part((self._start, FOUND), self._lengths, self._live.patched, (space.start, found))
        own = self._part((FOUND,), (trained,), self._live.patched, (space.base,)) if self._kept else None
        return [*self._as_is, searched, *filter(None, [own, self._truncated])]

    @property
    def stride(self) -> int | None:
        """The tokens that each window of truncation scores; None where it is not measured."""
        return self._truncated.query.stride if self._truncated else None

    def tokens(self, parts: Iterable[Part]) -> int:
        """Counts the tokens that parts feed."""
        return sum(self._feeding.tokens(part.query) for part in parts)

    def take(self, part: Part, answer: Answer) -> None:
        """Keeps an answer."""
        for name, losses, windows in zip(part.names, answer.losses, answer.by_length, strict=True):
            curve = self.curves.setdefault(name, {})
            for length in part.lengths:
                place = self._lengths.index(length)
                curve[length] = list(losses) if part.query.stride else [each[place] for each in windows]

    def _part(
        self,
        names: Sequence[str],
        lengths: Sequence[int],
        within: Callable[[], AbstractContextManager[None]],
        points: tuple[Point, ...] = ((),),
    ) -> Part:
        return Part(names, lengths, Query(points, self._feeding.measured, held_out=True, positions=lengths[-1]), within)

    @cached_property
    def _model(self) -> nn.Module:
        return self._live.model

    @cached_property
    def _as_is(self) -> list[Part]:
        """One pass at the longest length, or one for each table where it follows the length."""
        held = Variant(self._model, AS_IS, {}).tables(self._lengths)
        found = []
        for rotation, tables in {tables.rotation: tables for tables in held.values()}.items():  # of the longest
            shared = [length for length in self._lengths if held[length].rotation == rotation]
            found.append(self._part((AS_IS,), shared, tables.live))
        return found

    @cached_property
    def _truncated(self) -> Part | None:
        """Truncation at the smallest stride that costs no more than all the rest; None where it cannot be."""
        trained, target = self._lengths[0], self._lengths[-1]
        if trained_length(self._model) != trained:
            return None
        try:
            tables = AsTrained(self._model).tables([trained])[trained]
        except RopescaleError:
            return None
        rest = self._feeding.most + self.tokens(self._as_is)
        queries = [
            Query(((),), self._feeding.measured, held_out=True, positions=trained, stride=max(1, trained // share))
            for share in SHARES
        ]
        query = next((each for each in queries if self._feeding.tokens(each) <= rest), queries[-1])
        return Part((TRUNCATION,), (target,), query, tables.live)


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


class SearchRun:
    """A search that can be interrupted.

    Args:
        compared: whether what is found is measured beside what there is without it.
    """

    def __init__(self, model: PreTrainedModel, feeding: Feed, options: SearchOptions, compared: bool = True) -> None:
        self.options, self.feeding, self.notes = options, feeding, Notes.of(options.progress)
        self.target = feeding.target
        self.plan = plan_of_start(
            patching.configuration_before(model, options.patching.get("on_top", False)), self.target, options.patching
        )
        self.space = space_of(self.plan, self.target, options)
        self.lengths = lengths_to(self.plan, self.target)
        self.learner = Learner(model, options.logits_bytes)
        feeding.check_ids(self.learner.vocabulary)
        self.checks: list[Check] = []
        self.steps: list[tuple[int, float]] = []
        self.live = LiveTables(self.learner.model, self.plan)
        kept = options.keep_short
        self.judging = Judging(self.live, self.space, self.start, self.lengths, feeding, kept) if compared else None
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
        """The tokens that it takes to measure what is found beside what there is without it."""
        return self.judging.tokens(self.judging.parts(self.space.start)) if self.judging else 0

    def run(self, store: Store | None = None, group: Group | None = None) -> None:
        """Searches; answers that are kept in the store's folder are not computed again."""
        group = group or Group(World())
        journal = self._journal(store, group)
        kept = group.from_leader(journal.kept)
        journal.left = iter(kept)
        self.notes.tell(
            f"search: gradient over {len(self.space.names)} numbers, at most {self.feeding.most:,} tokens "
            f"in {self.feeding.about}" + (f"; {self.beside:,} more to measure it" if self.beside else "")
        )
        if kept:
            self.notes.tell(f"resuming: {len(kept)} answers are kept")
        if store is not None and group.world.leads and self.judging:
            store.begin({"kind": "search", "facts": self.facts})
        with self.live.patched(), evaluating(self.learner.model):
            texts = self.feeding.texts(self.lengths, self.options.within)
            with torch.inference_mode():
                self.learner.check(texts.held_out[0].pieces(None)[0].ids)
            evaluator = Evaluator(self.learner, self.live, self.space, texts, group)
            with self._telling(journal):
                self._drive(gradient.search(self.space, self.feeding.allowance), evaluator, journal, group)
        with evaluating(self.learner.model), self._telling(journal):
            self._judge(evaluator, journal, group)

    def _judge(self, evaluator: Evaluator, journal: Journal, group: Group) -> None:
        """Measures what is found beside what there is without it; the budget is the search's."""
        if self.judging is None or self._found is None:
            return
        with Progress("what was found", self.beside, self.notes.shown and group.world.leads) as progress:
            for part in self.judging.parts(self._found):
                answer = journal.replayed(part.query)
                if answer is None:
                    with part.within():
                        answer = evaluator.answer(part.query)
                    journal.add(part.query, answer)
                    progress.add(self.feeding.tokens(part.query))
                self.judging.take(part, answer)

    @contextmanager
    def _telling(self, journal: Journal) -> Iterator[None]:
        """Says what is kept, when the search is stopped inside."""
        try:
            yield
        except BaseException:
            folder = journal.store.folder
            if folder is not None and journal.kept:
                kept = f"{len(journal.kept)} steps are kept in {folder.parent}"
                self.notes.tell(f"the search stopped; {kept}; the same command continues")
            raise

    def _drive(self, method: Method, evaluator: Evaluator, journal: Journal, group: Group) -> None:
        """Answers the method's questions until it has found its point."""
        total = self.feeding.most
        with Progress("search: gradient", total, self.notes.shown and group.world.leads) as progress:
            query, clock = next(method), _Clock(total, self.notes)
            while True:
                answer = journal.replayed(query)
                if answer is None:
                    with clock.timing(self.feeding.tokens(query), measured=not query.held_out):
                        answer = evaluator.answer(query)
                    journal.add(query, answer)
                    progress.say(self._losses(query, answer))
                    progress.add(self.feeding.tokens(query))
                self._note(query, answer)
                try:
                    query = method.send(answer)
                except StopIteration as end:
                    self._found = end.value
                    return

    def _losses(self, query: Query, answer: Answer) -> str:
        """Returns the loss of this step, and the held-out one at first and at its lowest."""
        held = [check.loss for check in self.checks]
        step = f"loss {min(answer.means):.4f}{' held out' if query.held_out else ''}"
        return f"{step} (held out {held[0]:.4f} at first, {min(held):.4f} at best)" if held else step

    def planned(self) -> dict[str, Any]:
        """Returns results.json as far as it is known before the run."""
        return {"model": self.model_facts, "data": self.feeding.data, "protocol": self._protocol}

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
            data=self.feeding.data,
            protocol=self._protocol,
            versions=fingerprints.versions(),
            start=self.start,
            spec=spec_line(learned.schedule),
            lengths=self.lengths,
            names=[self.feeding.names[number] for number in self.feeding.measured],
            proved=self.proved,
            checks=self.checks,
            found=found,
            steps=self.steps,
            tables=learned.tables,
            spent=self.spent,
            curves=self.judging.curves if self.judging else {},
            beside=self.beside,
            learned=learned,
            file=self.file,
        )

    @property
    def proved(self) -> bool:
        """Whether the windows that are measured chose nothing."""
        return self.feeding.measured[0] >= self.feeding.allowance.held_out

    @property
    def start(self) -> str:
        """The schedule that the search starts at: YaRN's default, or with scale 1 where there is no other."""
        scales = self.space.tables(torch.tensor(self.space.start, dtype=torch.float64))
        usual = all(math.isclose(float(s), self.plan.tables[key].attention_scale) for key, (_, s) in scales.items())
        return f"yarn:factor={self.target / self.trained:g}{'' if usual else ',attention_factor=1'}"

    @property
    def _protocol(self) -> dict[str, object]:
        options, chose = self.options, self.feeding.allowance.held_out
        named = ("seed", "budget_tokens", "within", "keep_short", "engine")
        return {
            "name": "ropescale",
            "method": "gradient",
            **{name: getattr(options, name) for name in named},
            "numbers": len(self.space.names),
            "found": dict(zip(self.space.names, self._found, strict=True)) if self._found else {},
            "target_length": self.target,
            "trained_length": self.trained,
            "bos": self.feeding.bos_option,
            "held_out": self.feeding.names[:chose],
            "judged": self.feeding.names[chose:],
            **({"truncation_stride": self.judging.stride} if self.judging else {}),
            **self.feeding.said,
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
            **self.feeding.facts,
            "searching": SEARCHING,
        }

    def _journal(self, store: Store | None, group: Group) -> Journal:
        return Journal(store if store and group.world.leads else Store(), self.facts)

    def _note(self, query: Query, reply: Answer) -> None:
        """Keeps what is shown of an answer."""
        self.spent += self.feeding.tokens(query)
        for point, mean in zip(query.points, reply.means, strict=True):
            if query.held_out:
                self.checks.append(Check(self.spent, point, mean))
            else:
                self.steps.append((self.spent, mean))


class _Clock:
    """Says after the first step of a long search how long it will be."""

    def __init__(self, total: int, notes: Notes) -> None:
        self._left, self._notes, self._said = total, notes, False

    @contextmanager
    def timing(self, tokens: int, measured: bool) -> Iterator[None]:
        """Times what is done inside; ``measured`` where the others will take as long."""
        start = time.perf_counter()
        yield
        seconds, self._left = time.perf_counter() - start, self._left - tokens
        left = self._left * seconds / tokens
        if measured and not self._said and left > LONG_SECONDS:
            self._notes.tell(f"{tokens:,} tokens in {seconds:,.1f} s; at this speed at most {duration(left)} to go")
        self._said |= measured


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
        options = dataclasses.replace(options, source=source.name, split_special_tokens=source.split_special_tokens)
    plan = plan_of_start(checkpoint.config, target, options.patching)
    space_of(plan, target, options)
    texts, tokenizer, notes = source and source.texts(), checkpoint.tokenizer(), Notes.of(options.progress)
    found = make_feed(texts, tokenizer, lengths_to(plan, target), bos, options)
    checkpoint.warn(notes)
    if source is not None and isinstance(found, TextFeed):
        tell_left_out(source, found.corpus, notes)
    run = SearchRun(checkpoint.model(here), found, dataclasses.replace(options, path=checkpoint.folder))
    run.file = file
    return run
