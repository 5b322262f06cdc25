"""Learns a schedule with frozen weights, and compares it with baselines on the same windows."""

import json
import math
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import torch

from ...files import Data, present
from ...models import patching
from ...models.rotary_modules import evaluating
from ...output.formatting import size
from ...schedules import Schedule, Yarn
from ..backends.base import Backend
from ..backends.schedules import Schedules, label
from ..checking import Parsed
from ..data.documents import check_ids
from ..metrics.verdicts import too_few
from ..parallel.processes import Group
from ..progress import Progress
from ..running.perplexity import PerplexityRun
from ..scoring.memory import devices_of, refuse
from ..store import Facts, Store
from . import gradient
from .gradient import Steps, Trials
from .learner import Evaluator, Learner, LiveTables
from .metrics import FOUND, Search, Trial
from .options import ENOUGH, SearchOptions, lengths_to, plan_of_start
from .results import SearchResult, specs_of
from .search_space import space_of
from .windows import FEW_STEPS, SearchData, windows_for

SEARCHING = 5
"""The version of searching. It is increased when the same inputs would give different numbers, so that stored steps of
earlier versions are not used."""


class SearchRun:
    """A resumable search.

    Args:
        file: the file to which saving the result writes the schedule, or None.

    Attributes:
        trials: the trials; None before the run.
        found: the check with the lowest loss; None before the end of the search.
        comparison: the measurement of the found schedule and its baselines.
    """

    comparison: PerplexityRun
    finished = ""
    """Empty, because an interrupted search writes no results."""

    def __init__(self, backend: Backend, data: SearchData, options: SearchOptions, file: Path | None = None) -> None:
        self.backend = backend
        self.options = options
        self.data = data
        self.notes = options.notes
        self.file = file
        self.target = data.target
        model = backend.differentiable()
        config = patching.configuration_before(model, options.patching.get("on_top", False))
        self.plan = plan_of_start(config, self.target, options.patching)
        self.space = space_of(self.plan, self.target, options.engine)
        self.lengths = lengths_to(self.plan, self.target)
        self.trained = self.lengths[0]
        self.learner = Learner(model, options.logits_bytes)
        if self.learner.retries and len(devices_of(model)) == 1:  # how several share a step is not known
            refuse(model, self.target, self.learner.step_bytes, "a step over a window")
        check_ids(data.corpus.documents, self.learner.vocabulary, data.corpus.bos)
        self.live = LiveTables(self.learner.model, self.plan)
        self.trials: Trials | None = None
        self.found: Trial | None = None

    @property
    def spent(self) -> int:
        """The number of tokens that the search has fed, without those of the comparison."""
        return self.trials.spent if self.trials else 0

    def run(self, store: Store, group: Group) -> None:
        """Searches, and then measures the found schedule and its baselines. The budget does not include the
        measurement."""
        few = too_few(len(self.data.corpus.windows), f"documents of {self.target:,} tokens", ENOUGH)
        if few:
            self.notes.warn(f"warning: this text cannot decide: {few}; a schedule is searched all the same")
        if group.world.leads:
            store.begin(self._about)
        self.search(store, group)
        self.comparison = self._comparison(self.spec)
        self.comparison.run(store, group)

    def search(self, store: Store, group: Group) -> None:
        """Runs only the search, reusing stored steps."""
        steps = Steps(store, self.facts, group)
        budget = self.data.budget
        self.notes.tell(
            f"search: gradient over {len(self.space.names)} numbers, at most {budget.steps} steps and {budget.most:,} "
            f"tokens in {self.data.about}; a step takes about {size(self.learner.step_bytes(self.target))} beside the "
            "weights"
        )
        if budget.steps < FEW_STEPS:
            self.notes.warn(
                f"warning: the budget has {budget.steps} steps, which are few; {FEW_STEPS} need "
                f"{windows_for(FEW_STEPS)} windows of {self.target:,} tokens"
            )
        if steps.kept:
            self.notes.tell(f"resuming: {len(steps.kept)} steps are kept")
        evaluator = Evaluator(self.learner, self.live, self.space, group)
        parts = self.data.split
        samples = self.data.weighted(parts.learned, self.trained)
        choosing = self.data.weighted(parts.held_out, self.trained)
        shown = self.notes.shown and group.world.leads
        try:
            with (
                evaluating(self.learner.model),
                self.live.patched(),
                Progress("search", budget.most, shown) as progress,
            ):
                with torch.inference_mode():
                    self.learner.check(choosing[0].ids)
                self.trials = Trials(evaluator, choosing, steps, progress)
                self.found = gradient.search(self.space, budget, samples, self.trials)
        except BaseException:
            if store.folder is not None and steps.kept:
                kept = f"{len(steps.kept)} steps are kept in {store.folder.parent}"
                self.notes.tell(f"the search stopped; {kept}; run the same command to continue")
            raise

    @cached_property
    def schedule(self) -> Schedule | dict[str, Schedule]:
        """The found schedule, at the end of the search, or a dict by layer type if the schedules differ."""
        assert self.found is not None
        return self.space.schedule(self.found.point)

    @property
    def spec(self) -> str:
        """The found schedule, in the form that ``--schedule`` accepts."""
        return label(self.schedule) if isinstance(self.schedule, Yarn) else json.dumps(specs_of(self.schedule))

    def _comparison(self, *found: str) -> PerplexityRun:
        """Returns the measurement of the unchanged model, the start and the found schedule on the judging windows."""
        schedules = Schedules([self.start, *found], self.start, self.options.patching)
        return self.data.comparison(self.backend, schedules, self.lengths, self._about)

    # --- the record ---

    def planned(self) -> Parsed:
        """Returns the part of results.json that is known before the run."""
        known = self._comparison().planned()
        return {**known, "data": self.data.data, "protocol": {**known["protocol"], **self._protocol}}

    def result(self) -> SearchResult:
        """Returns the finished search."""
        measured = self.comparison.result()
        assert self.trials is not None and self.found is not None
        search = Search(
            start=self.start,
            spec=self.spec,
            plan=self.plan,
            schedule=self.schedule,
            checks=self.trials.checks,
            found=self.found,
            steps=self.trials.steps,
            spent=self.spent,
            file=self.file,
        )
        protocol = {**measured.protocol, **self._protocol, "named": {label(self.spec): FOUND}}
        return SearchResult(
            model={**measured.model, "trained_length": measured.trained_length},
            data=self.data.data,
            protocol=protocol,
            versions=measured.versions,
            search=search,
            comparison=replace(measured, data=self.data.data, protocol=protocol),
        )

    @property
    def start(self) -> str:
        """The starting schedule: YaRN's default, or YaRN with attention scale 1 if the space has no other scale."""
        scales = self.space.tables(self.space.start)
        tables = self.plan.tables
        usual = all(math.isclose(float(scale), tables[key].attention_scale) for key, (_, scale) in scales.items())
        return f"yarn:factor={self.target / self.trained:g}{'' if usual else ',attention_factor=1'}"

    @property
    def _protocol(self) -> Data:
        options = self.options
        return {
            "name": "ropescale",
            "method": "gradient",
            "seed": options.seed,
            "budget_windows": options.budget_windows,
            "budget_tokens": options.budget_tokens,
            "engine": options.engine,
            "numbers": len(self.space.names),
            "found": dict(zip(self.space.names, self.found.point)) if self.found else {},
            "target_length": self.target,
            "trained_length": self.trained,
            "bos": self.data.corpus.bos_option,
            "held_out": self.data.chosen_by,
            "judged": self.data.judged_by,
        }

    @property
    def _about(self) -> Data:
        """The facts that the next run in the same folder is compared with."""
        return {"kind": SearchResult.kind, "search": self.facts}

    @cached_property
    def facts(self) -> Facts:
        """The facts that determine the losses."""
        options = self.options
        return {
            **self.backend.identity,
            **self.backend.arithmetic,
            "budget_windows": options.budget_windows,
            "budget_tokens": options.budget_tokens,
            "seed": options.seed,
            "engine": options.engine,
            "logits_bytes": options.logits_bytes,
            "patching": present(options.patching),
            "target_length": self.target,
            **self.data.facts,
            "searching": SEARCHING,
        }
