"""Learns a schedule with frozen weights, and compares it with baselines on the same windows."""

from __future__ import annotations

import math
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
from ..data.chats import Given
from ..data.sources import TextSource
from ..metrics.stored import AS_IS
from ..parallel.processes import Group, World
from ..running import fingerprints
from ..running.checkpoint import Checkpoint
from ..running.corpus_run import SHARES
from ..running.options import check_keywords
from ..running.progress import Notes, Progress
from ..running.runner import carry_out
from ..running.variants import AsTrained, Variant, passes_of, trained_length
from ..store import Facts, Store
from . import gradient
from .gradient import Steps, Trials
from .learner import Evaluator, Learner, LiveTables
from .metrics import FOUND, TRUNCATION, Trial
from .options import SearchKeywords, SearchOptions, lengths_to, plan_of_start
from .prompts import make_data
from .results import Learned, SearchResult, files_of, spec_line
from .search_space import Point, space_of
from .windows import Sample, SearchData, tokens_in

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


SEARCHING = 3
"""A version, raised when the same inputs would give other numbers, so that stored steps are not reused."""


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

    The search starts at YaRN's default. Some documents are held out to choose the best schedule. If there are enough,
    others are held out to compare it with YaRN's default, the unchanged model, and truncation.

    Args:
        model: a causal language model of transformers, possibly compiled or PEFT-wrapped.
        documents: as for :func:`ropescale.evals.perplexity`; only documents of at least ``target_length`` positions
            give windows. None with ``objective="keys"``, which makes its own prompts.
        target_length: the target context in positions, including BOS.
        tokenizer: encodes strings, and defines BOS.
        bos: "auto" (the tokenizer's, if it has one), "yes", "no", or an id.
        out: a file for the schedule, such as ``factors.json``. The run's folder beside it, then ``factors-search``,
            keeps every step, so the same call continues an interrupted search.
        fresh: discard stored steps.
        force: replace results in ``out`` of another text or model, or more results than these.
        options: the fields of :class:`.options.SearchOptions`, such as ``objective`` or ``budget_tokens``.

    Raises:
        DataError: there is too little text, the budget is too small for a step, or an option is invalid.
        ConfigError, ScheduleError: the model has no rotation that YaRN can change, is scaled already, or was trained
            beyond the target.
        RunError: the logits are not finite.
        CheckpointError: ``out`` cannot be written, was not written by a search, or is in use by another process.
    """
    check_keywords(search, SearchOptions, options)
    chosen, target = SearchOptions(**options), parse_length(target_length)
    file, folder = (None, None) if out is None else files_of(out)
    plan = plan_of_start(
        patching.configuration_before(model, chosen.patching.get("on_top", False)), target, chosen.patching
    )
    data = make_data(documents, tokenizer, lengths_to(plan, target), bos, chosen)
    return carry_out(SearchRun(model, data, chosen, file), folder, fresh, force=force)


@dataclass(frozen=True)
class JudgingPass:
    """A pass over the judging samples.

    Attributes:
        names: the schedules' names, one per point.
        lengths: the lengths of a sample's figures.
        samples: the fed samples.
        live: returns a context in which the tables are live.
        points: the points; an empty one leaves the tables unchanged.
    """

    names: Sequence[str]
    lengths: Sequence[int]
    samples: Sequence[Sample]
    live: Callable[[], AbstractContextManager[None]]
    points: Sequence[Point] = ((),)

    @property
    def tokens(self) -> int:
        """The tokens that it feeds."""
        return len(self.points) * tokens_in(self.samples)


class SearchRun:
    """A resumable search.

    Args:
        file: the file for the schedule when the result is saved.
        compared: whether the found schedule is compared with the start, the unchanged model, and truncation.

    Attributes:
        trials: the trials; None before the run.
        found: the check with the least loss.
        curves: the NLL of each judging sample in nats per token, by schedule and length.
    """

    finished = ""
    """Empty, because an interrupted search writes no results."""

    def __init__(
        self,
        model: PreTrainedModel,
        data: SearchData,
        options: SearchOptions,
        file: Path | None = None,
        compared: bool = True,
    ) -> None:
        self.options, self.data, self.notes, self.compared = options, data, Notes.of(options.progress), compared
        self.file, self.target = file, data.target
        config = patching.configuration_before(model, options.patching.get("on_top", False))
        self.plan = plan_of_start(config, self.target, options.patching)
        self.space = space_of(self.plan, self.target, options)
        self.lengths = lengths_to(self.plan, self.target)
        self.trained = self.lengths[0]
        self.learner = Learner(model, options.logits_bytes)
        data.check_ids(self.learner.vocabulary)
        self.live = LiveTables(self.learner.model, self.plan)
        self.trials: Trials | None = None
        self.found: Trial | None = None
        self.curves: dict[str, dict[int, list[float]]] = {}

    @property
    def spent(self) -> int:
        """The tokens that the search has fed, without those of the comparison."""
        return self.trials.spent if self.trials else 0

    def run(self, store: Store | None = None, group: Group | None = None) -> None:
        """Runs the search, and reuses stored steps."""
        group, store = group or Group(World()), store or Store()
        shown, budget = self.notes.shown and group.world.leads, self.data.budget
        steps = Steps(store, self.facts, group)
        self.notes.tell(
            f"search: gradient over {len(self.space.names)} numbers, at most {budget.most:,} tokens "
            f"in {self.data.about}" + (f"; {self.beside:,} more to measure it" if self.compared else "")
        )
        if steps.kept:
            self.notes.tell(f"resuming: {len(steps.kept)} steps are kept")
        if group.world.leads and self.compared:
            store.begin({"kind": "search", "facts": self.facts})
        evaluator = Evaluator(self.learner, self.live, self.space, group)
        samples, choosing = self.data.learned(self.trained), self.data.choosing(self.trained)
        try:
            with evaluating(self.learner.model):
                with self.live.patched(), Progress("search: gradient", budget.most, shown) as progress:
                    with torch.inference_mode():
                        self.learner.check(choosing[0][0].ids)
                    self.trials = Trials(evaluator, choosing, steps, progress)
                    self.found = gradient.search(self.space, budget, samples, self.trials)
                if self.compared:
                    self._compare(self.found.point, evaluator, steps, shown)
        except BaseException:
            if store.folder is not None and steps.kept:
                kept = f"{len(steps.kept)} steps are kept in {store.folder.parent}"
                self.notes.tell(f"the search stopped; {kept}; run the same command to continue")
            raise

    # --- comparing ---

    def _compare(self, found: Point, evaluator: Evaluator, steps: Steps, shown: bool) -> None:
        """Measures the found schedule and its baselines; this is not part of the budget."""
        with Progress("the found schedule", self.beside, shown) as progress:
            for each in self._comparisons(found):
                with each.live():
                    figures, is_new = steps.take(lambda each=each: evaluator.figures(each.points, each.samples))
                if is_new:
                    progress.add(each.tokens)
                for name, rows in zip(each.names, figures, strict=True):
                    columns = zip(each.lengths, map(list, zip(*rows, strict=True)), strict=True)
                    self.curves.setdefault(name, {}).update(columns)

    @cached_property
    def beside(self) -> int:
        """The tokens of the comparison with the start, the unchanged model and truncation."""
        return sum(each.tokens for each in self._comparisons(self.space.start)) if self.compared else 0

    def _comparisons(self, found: Point) -> list[JudgingPass]:
        """Returns the passes of the comparison for the searched parameters."""
        space, judging, patched = self.space, self.data.judging, self.live.patched
        own = [(self.trained,), judging((self.trained,)), patched, (space.base,)]
        return [
            *self._as_is,
            JudgingPass((self.start, FOUND), self.lengths, judging(self.lengths), patched, (space.start, found)),
            *([JudgingPass((FOUND,), *own)] if self.options.keep_short else []),
            *([self._truncation] if self._truncation else []),
        ]

    @cached_property
    def _as_is(self) -> list[JudgingPass]:
        """The passes of the unchanged model: one at the longest length, or one per table if it follows the length."""
        passes = passes_of(Variant(self.learner.model, AS_IS, {}).tables(self.lengths))
        return [JudgingPass((AS_IS,), p.lengths, self.data.judging(p.lengths), p.tables.live) for p in passes]

    @cached_property
    def _truncation(self) -> JudgingPass | None:
        """Truncation at the smallest stride that costs at most the rest; None if impossible."""
        model, trained = self.learner.model, self.trained
        if trained_length(model) != trained:
            return None
        try:
            tables = AsTrained(model).tables([trained])[trained]
        except RopescaleError:
            return None
        rest = self.data.budget.most + sum(each.tokens for each in self._as_is)
        strides = [max(1, trained // share) for share in SHARES]
        fitting = (stride for stride in strides if tokens_in(self.data.truncated(trained, stride)) <= rest)
        self._stride = next(fitting, strides[-1])
        return JudgingPass((TRUNCATION,), (self.target,), self.data.truncated(trained, self._stride), tables.live)

    # --- the record ---

    def planned(self) -> dict[str, Any]:
        """Returns the part of results.json that is known before the run."""
        return {"model": self.model_facts, "data": self.data.data, "protocol": self._protocol}

    def result(self) -> SearchResult:
        """Returns the finished search.

        Raises:
            RunError: the search was interrupted.
        """
        if self.trials is None or self.found is None:
            raise RunError("the search was stopped before its end; repeat the call to continue")
        learned = Learned(self.plan, self.space, self.found.point)
        return SearchResult(
            model=self.model_facts,
            data=self.data.data,
            protocol=self._protocol,
            versions=fingerprints.versions(),
            start=self.start,
            spec=spec_line(learned.schedule),
            lengths=self.lengths,
            names=self.data.judged_by or self.data.chosen_by,
            proved=bool(self.data.judged_by),
            checks=self.trials.checks,
            found=self.found,
            steps=self.trials.steps,
            tables=learned.tables,
            spent=self.spent,
            curves=self.curves,
            beside=self.beside,
            learned=learned,
            file=self.file,
        )

    @property
    def start(self) -> str:
        """The starting schedule: YaRN's default, with attention scale 1 if the space has no other."""
        scales = self.space.tables(torch.tensor(self.space.start, dtype=torch.float64))
        usual = all(math.isclose(float(s), self.plan.tables[key].attention_scale) for key, (_, s) in scales.items())
        return f"yarn:factor={self.target / self.trained:g}{'' if usual else ',attention_factor=1'}"

    @property
    def _protocol(self) -> dict[str, object]:
        named = ("seed", "budget_tokens", "within", "keep_short", "engine")
        return {
            "name": "ropescale",
            "method": "gradient",
            **{name: getattr(self.options, name) for name in named},
            "numbers": len(self.space.names),
            "found": dict(zip(self.space.names, self.found.point, strict=True)) if self.found else {},
            "target_length": self.target,
            "trained_length": self.trained,
            "bos": self.data.bos_option,
            "held_out": self.data.chosen_by,
            "judged": self.data.judged_by,
            **({"truncation_stride": self._stride if self._truncation else None} if self.compared else {}),
            **self.data.protocol,
        }

    @cached_property
    def model_facts(self) -> fingerprints.ModelFacts:
        """The model before any schedule."""
        return fingerprints.describe(self.learner.model, self.options.path)

    @cached_property
    def facts(self) -> Facts:
        """The facts that determine the losses."""
        options = self.options
        named = ("budget_tokens", "seed", "numbers", "keep_short", "engine", "within", "logits_bytes")
        return {
            **{name: self.model_facts[name] for name in ("weights", "config_sha256", "dtype")},
            **fingerprints.arithmetic(self.learner.model),
            **{name: getattr(options, name) for name in named},
            "patching": {key: value for key, value in options.patching.items() if value is not None},
            "target_length": self.target,
            **self.data.facts,
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
    """Prepares a search.

    Args:
        source: the text; None if the objective makes its own prompts.
        file: the file for the schedule.

    Raises:
        RopescaleError: something cannot be read or searched.
    """
    if source is not None:
        source.refuse_endless(options.max_docs)
    plan = plan_of_start(checkpoint.config, target, options.patching)
    space_of(plan, target, options)
    texts, tokenizer = source and source.texts(), checkpoint.tokenizer()
    data = make_data(texts, tokenizer, lengths_to(plan, target), bos, options, source)
    checkpoint.warn(Notes.of(options.progress))
    return SearchRun(checkpoint.model(here), data, options, file)
