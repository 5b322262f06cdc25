"""Recommends a schedule: candidates race on half of the text, and finalists are compared on the held-out half.

Each round of the race, and the comparison of the finalists, measures perplexity on some of the windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import count

import numpy as np

from ...errors import DataError, RunError
from ...files import Data
from ..backends import fingerprints
from ..backends.base import Backend
from ..backends.schedules import Schedules, label
from ..checking import Parsed
from ..data.windows import windows_by_document
from ..facts import AS_IS, PerWindow, positions_of
from ..metrics.stored import part_of
from ..parallel.processes import Group
from ..progress import Progress
from ..results.result import Result
from ..running.corpus import Corpus, PerplexityOptions
from ..running.perplexity import Part, PerplexityRun, plan_truncation
from ..searching.options import SearchOptions
from ..searching.search_run import SearchRun
from ..searching.windows import feed_text
from ..statistics.intervals import PERCENT
from ..store import Store
from . import wording
from .candidates import Candidates
from .evidence import Evidence
from .options import Objective, RecommendOptions
from .race import FINALISTS, Round, expected, run_race, share_kept, split_windows
from .results import Recommendation


class RecommendRun:
    """A recommendation that can be interrupted and resumed. Call :meth:`result` when it has finished.

    Attributes:
        losses: all losses so far, of all windows; empty for windows that a candidate was not measured on.
        whole: the measurement of every candidate on all the text. It is never run, but every round is a part of it.
        fed: the number of tokens fed, including those of an interrupted run.
    """

    def __init__(
        self, backend: Backend, corpus: Corpus, objective: Objective, candidates: Candidates, options: RecommendOptions
    ) -> None:
        self.backend = backend
        self.corpus = corpus
        self.objective = objective
        self.candidates = candidates
        self.options = options
        self.notes = options.text.notes
        everything = list(range(len(corpus.documents)))
        self.race = list[int]()
        self.held_out = everything
        if not candidates.served:
            self.race, self.held_out = split_windows(corpus.windows, options.search)
        self.rounds: list[Round] = []
        self.finalists: list[str] = []
        self.fed = 0
        reading = replace(options.text, truncation=None, truncation_stride=None)
        self.whole = self._measurement(self._part(everything, reading), candidates.specs)
        self.losses = self.whole.result()

    @property
    def finished(self) -> str:
        """The completed part of the run, as text; "" if the run is not finished."""
        return "the decision" if self.finalists else ""

    def run(self, store: Store, group: Group) -> None:
        """Measures everything that is not in the store yet.

        Args:
            store: the store of finished batches.
            group: the processes that share the work.
        """
        self._store = store
        self._group = group
        self.whole.go_on(store, group)
        if store.last:
            self.notes.tell("finished parts in the folder are not measured again")
        self._most_fed = self._announce()
        with Progress("whole run", self._most_fed // group.world.teams, self.notes.shown, line=1) as self._progress:
            rounds = self._run_race()
            if self.options.search and self.objective.is_beyond:
                self._search()
            specs = self.candidates.specs
            kept = {*self.candidates.always, *(rounds[-1].kept if rounds else specs)}
            finalists = [each for each in specs if each in kept]
            stride = self._truncation[0]
            if self.race != self.held_out or self.options.search:
                self._measure(finalists, self.held_out, "held-out text", stride)
            elif stride:  # the race has read all the text
                self._measure([AS_IS], self.held_out, "truncation", stride)
        self.rounds = rounds
        self.finalists = finalists

    def planned(self) -> Parsed:
        """Returns the part of results.json that is known before the run."""
        return {"model": self.backend.facts, "data": self.corpus.facts, "protocol": self._protocol()}

    def result(self) -> Recommendation:
        """Returns the recommendation."""
        evidence = Evidence(
            losses=self.losses,
            candidates=self.candidates,
            objective=self.objective,
            rounds=self.rounds,
            finalists=self.finalists,
            comparison=self._comparison,
            options=self.options,
        )
        return Recommendation(
            model={**self.backend.facts, "trained_length": self.objective.trained},
            data=self.corpus.facts,
            protocol=self._protocol(),
            versions=fingerprints.versions(),
            evidence=evidence,
        )

    @property
    def _comparison(self) -> Result:
        """The finalists' measurement on the held-out text."""
        part = part_of(self.losses, self.held_out)
        facts = self._part(self.held_out).facts
        data = part.data | {name: facts[name] for name in ("documents", "windows", "tokens")}
        return replace(part, data=data, passes=[each for each in part.passes if each.schedule in self.finalists])

    # --- measuring ---

    def _measurement(self, corpus: Corpus, specs: Sequence[str], part: Part | None = None) -> PerplexityRun:
        """Returns the measurement of schedules on a corpus."""
        return PerplexityRun(self.backend, corpus, Schedules(specs, None, self.options.text.patching), part)

    def _part(self, windows: Sequence[int], options: PerplexityOptions | None = None) -> Corpus:
        """Returns the corpus with only some of its windows, and the lengths at which every candidate is measured."""
        return self.corpus.part(windows, self.objective.needed, options)

    def _measure(self, specs: Sequence[str], windows: Sequence[int], title: str, stride: int | None = None) -> Result:
        """Measures candidates on windows in all processes, and returns all losses so far.

        Every process gets the losses of the first process, so all processes make the same decisions.

        Args:
            stride: the stride of truncation, which is also measured; None omits truncation.
        """
        reading = replace(
            self.options.text,
            batch_tokens=self.whole.batch_tokens,
            truncation=None if stride else False,
            truncation_stride=stride,
        )
        about = {"kind": Recommendation.kind, "whole": self.whole.facts}
        run = self._measurement(self._part(windows, reading), specs, Part(title, about, whole=self._progress))
        run.run(self._store, self._group)
        passes, truncation = self._group.from_leader((run.passes, run.truncation))
        self._count(sum(each.positions for each in (*passes, truncation) if each))
        names = {label(spec): spec for spec in specs}
        unmeasured = [np.empty(0, np.float32)] * len(self.corpus.documents)

        def placed(nll: PerWindow, others: PerWindow) -> PerWindow:
            """Returns the losses of all windows: those of this round, and the other windows' as before."""
            here = dict(zip(windows, nll, strict=True))
            return [here.get(number, other) for number, other in enumerate(others)]

        made = {(each.schedule, each.lengths): each for each in self.losses.passes}
        for each in passes:
            # A pass with all needed lengths has a single table, so its losses are valid at every shorter length.
            lengths = self.objective.lengths if each.lengths == self.objective.needed else each.lengths
            key = names[each.schedule], lengths
            nll = placed(each.nll, made[key].nll if key in made else unmeasured)
            made[key] = replace(each, schedule=key[0], lengths=lengths, nll=nll)
        last = truncation and replace(truncation, nll=placed(truncation.nll, unmeasured))
        tables = {**self.losses.tables, **run.result().tables}
        self.losses = replace(self.losses, passes=list(made.values()), truncation=last, tables=tables)
        return self.losses

    def _count(self, tokens: int) -> None:
        """Counts tokens as fed, also those of an interrupted run."""
        self.fed += tokens
        left = max(0, self._most_fed - self.fed)
        self._progress.expect(left // self._group.world.teams)

    def _run_race(self) -> list[Round]:
        specs = self.candidates.specs
        always = self.candidates.always
        if not self.race:
            return []
        if len(specs) <= len(always):
            self._measure(specs, self.race, "the race's text")
            return []
        numbers = count(1)

        def measure(left: Sequence[str], windows: Sequence[int]) -> Result:
            title = f"round {next(numbers)}: {len(left)} schedules"
            self.notes.tell(f"{title}, {len(windows)} window{'s' * (len(windows) != 1)} more")
            return self._measure(left, windows, title)

        return run_race(specs, self.objective.weights, self.race, always, self._most, measure)

    @property
    def _most(self) -> float:
        """The largest share of candidates that survives a round."""
        sizes = len(self.candidates.specs), len(self.candidates.always), self.race, self.held_out
        return share_kept(*sizes, self._truncation_positions / self.objective.target)

    @cached_property
    def _truncation(self) -> tuple[int | None, str]:
        """The stride of truncation on the held-out text, and a note that explains it.

        The stride is None if truncation costs more than the finalists, or cannot be measured.
        """
        short = self.objective.short
        if self.backend.trained != short:
            return None, ""
        finalists = len(self.candidates.specs) if self.candidates.served else FINALISTS + len(self.candidates.always)
        if self.race == self.held_out:
            finalists //= 2  # they are not measured again
        rest = finalists * len(self.held_out) * self.objective.target
        part = self._part(self.held_out)
        planned, told = plan_truncation(part, short, self.backend.as_trained, rest, self.whole.batch_tokens)
        return planned and planned.stride, told

    @property
    def _truncation_positions(self) -> int:
        stride = self._truncation[0]
        goal = self.objective
        if stride is None:
            return 0
        return positions_of([goal.target - goal.short] * len(self.held_out), goal.short, stride)

    def _search(self) -> None:
        """Searches on the race's text, which does not overlap with the held-out text, and adds the schedule found."""
        options = SearchOptions(
            budget_tokens=self.options.search_tokens,
            engine=self.options.engine,
            patching=self.options.text.patching,
            source=self.corpus.source,
            notes=self.notes,
            logits_bytes=self.options.text.logits_bytes,
        )
        documents = self._part(self.race).documents
        bos = "no" if self.corpus.bos is None else self.corpus.bos
        try:
            windows = feed_text({"": documents}, self.objective.target, None, bos, options, judged=False)
            run = SearchRun(self.backend, windows, options)
        except (DataError, RunError) as error:
            self.notes.warn(f"warning: the search is skipped: {error}")
            return
        run.search(self._store, self._group)
        self._progress.add(run.spent)
        self._count(run.spent)
        self.candidates = self.candidates.with_searched(self._group.from_leader(run.spec))

    # --- notes and the record ---

    def _announce(self) -> int:
        """Tells the user what is tried, and returns the largest number of tokens to feed."""
        goal = self.objective
        specs = self.candidates.specs
        documents = len(self.corpus.windows)
        tokens = goal.target * expected(len(specs), len(self.candidates.always), self.race, self.held_out, self._most)
        tokens += self._truncation_positions
        searched = 0
        more = ""
        if self.options.search and goal.is_beyond:
            searched = goal.target * SearchOptions(budget_tokens=self.options.search_tokens).feeds(goal.target)
            tokens += searched + goal.target * len(self.held_out)
            more = f", {searched:,} of them in the search"
        windows = len(self.corpus.documents)
        whole = len(specs) * windows * goal.target
        if not goal.is_beyond:
            self.notes.tell(f"{wording.not_needed(goal)} Only as-is and your schedules are measured.")
        self.notes.tell(
            f"candidates: {len(specs)}; {documents:,} document{'s' * (documents != 1)}, "
            f"{windows:,} window{'s' * (windows != 1)} of {goal.target:,}; at most {tokens:,} tokens to feed "
            f"({tokens / whole:.0%} of measuring every candidate on all the text){more}"
        )
        held_out = len(windows_by_document(self.corpus.windows, self.held_out))
        undecided = wording.cannot_decide(held_out, goal.target, searched > 0)
        if goal.is_beyond and undecided:
            self.notes.warn(f"warning: {undecided}")
        if self._truncation[1]:
            self.notes.tell(self._truncation[1])
        return tokens

    def _protocol(self) -> Data:
        goal = self.objective
        return {
            "name": "recommendation",
            "target_length": goal.target,
            "trained_length": goal.short,
            "weights": {str(length): weight for length, weight in goal.weights.items()},
            "tolerance": self.options.tolerance,
            "engine": self.options.engine,
            **({"named": self.candidates.names} if self.candidates.names else {}),
            "bos": self.corpus.bos_option,
            "rounds": [[len(each.candidates), len(each.windows)] for each in self.rounds],
            "race_windows": len(self.race),
            "held_out_windows": len(self.held_out),
            "tokens_fed": self.fed,
            "grid_tokens": len(self.candidates.specs) * len(self.corpus.documents) * goal.target,
            "interval": f"{self.corpus.interval}, {PERCENT}",
            "batch_tokens": self.whole.batch_tokens,
        }
