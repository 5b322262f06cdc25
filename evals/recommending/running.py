"""Recommends a schedule: candidates race on half of the text, and the other half decides among the finalists.

The model is loaded once and its rotary tables are swapped; every pass is a task of :mod:`..running.runner`.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import fields, replace
from functools import cached_property, partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...checkpoints.locating import read_config
from ...errors import DataError
from ...models.rotary_modules import evaluating
from ...schedules.specs import parse, repeated
from ..data import documents as data_documents
from ..data.documents import Document
from ..data.windows import prefix
from ..metrics.stored import AS_IS, ModelFacts, Truncation
from ..parallel.processes import Group, World
from ..running import fingerprints
from ..running.corpus_run import Truncating
from ..running.options import TextOptions
from ..running.preparing import Checkpoint, tell_left_out
from ..running.progress import Notes
from ..running.runner import Runner, ScoresBatches, Task, task_of
from ..running.selection import Corpus, PerplexityOptions
from ..running.variants import HeldPass, HeldTables, Variant, passes_of, trained_length
from ..scoring import memory
from ..scoring.batches import Batch, plan_pass
from ..scoring.executor import Executor
from ..scoring.scorer import SCORING, Scorer
from ..searching.options import SearchOptions
from ..searching.running import SearchRun
from ..searching.windows import feed_text
from ..statistics.intervals import PERCENT
from ..store import Facts, Store
from . import wording
from .candidates import Candidates, objective_and_candidates
from .deployment import BYTES, Deployment, cache_of, serving_dtype
from .evidence import TRUNCATION, Evidence
from .losses import BEYOND, FAR, OTHERS, CandidateLosses, column_masks, windows_by_document
from .options import Objective, RecommendOptions
from .race import FINALISTS, Round, expected, run_race, share_kept, split_windows
from .results import Recommendation

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ..data.sources import TextSource

_BACKWARD = 3
"""How many times as long a token takes with its gradient."""


def prepare(
    checkpoint: Checkpoint, source: TextSource, target: int, bos: str | int, options: RecommendOptions, here: World
) -> RecommendRun:
    """Prepares a recommendation from names: reads and checks everything cheap first, and the weights last.

    Raises:
        RopescaleError: whatever cannot be read or measured.
    """
    objective, candidates = objective_and_candidates(*checkpoint.configs, target, options)
    texts, tokenizer = source.texts(), checkpoint.tokenizer()
    options = replace(
        options, split_special_tokens=source.split_special_tokens, source=source.name, path=checkpoint.folder
    )
    corpus = Corpus(texts, objective.lengths, tokenizer, bos, text_options(options))
    notes = Notes.of(options.progress)
    checkpoint.warn(notes)
    tell_left_out(source, corpus, notes)
    return RecommendRun(checkpoint.model(here), corpus, objective, candidates, options)


def text_options(options: RecommendOptions) -> PerplexityOptions:
    """Returns how the text is read and fed."""
    given = {each.name: getattr(options, each.name) for each in fields(TextOptions)}
    return PerplexityOptions(short_context=False, **given)


class RecommendRun:
    """A recommendation that can be interrupted; :meth:`result` is for a finished one.

    Attributes:
        losses: all losses that are measured so far.
        fed: the tokens that went through the model, including those of an interrupted run.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        corpus: Corpus,
        objective: Objective,
        candidates: Candidates,
        options: RecommendOptions,
    ) -> None:
        self._begin(corpus, objective, candidates, options)
        self.scorer = Scorer(model, options.logits_bytes)
        self.vocabulary = self.scorer.vocabulary
        data_documents.check_ids(corpus.documents, self.vocabulary, corpus.bos)
        self.variants = {each: Variant(model, each, options.patching) for each in candidates.specs}
        self.batch_tokens = options.batch_tokens or memory.default_batch_tokens(
            self.scorer.model, objective.target, options.logits_bytes
        )
        race, held_out = split_windows(corpus.windows)
        if race:
            self.race, self.held_out = sorted(race), sorted(held_out)

    def _begin(self, corpus: Corpus, objective: Objective, candidates: Candidates, options: RecommendOptions) -> None:
        """Takes what every recommendation has, whoever computes the losses."""
        self.corpus, self.objective, self.candidates, self.options = corpus, objective, candidates, options
        self.notes = Notes.of(options.progress)
        self.race = self.held_out = list(range(len(corpus.documents)))
        self.rounds: list[Round] = []
        self.finalists: list[str] = []
        self.fed = 0
        self._masks = [column_masks(each, objective, corpus.has_bos) for each in corpus.documents]
        self.losses = CandidateLosses.empty(corpus.windows, self._masks, objective.weights)
        self._passes: dict[str, list[HeldPass]] = {}
        self._store, self._group = Store(), Group(World())

    @property
    def finished(self) -> str:
        """How much is complete."""
        return "the decision" if self.finalists else ""

    def run(self, store: Store | None = None, group: Group | None = None) -> None:
        """Measures what the store does not hold.

        Args:
            store: finished batches are taken from it and put into it.
            group: the processes that share the work.
        """
        self._store, self._group = store or self._store, group or self._group
        last, known = self._store.last, self.batch_tokens
        if self.options.batch_tokens is None and last.get("facts") == self.facts:  # another size is another plan
            before = last.get("batch_tokens")
            known = before if isinstance(before, int) else known
        self.batch_tokens = self._group.from_leader(known)
        if last:
            self.notes.tell("what is finished in the folder is not measured again")
        with self._ready():
            self._announce()
            rounds = self._run_race()
            if self.options.search and self.objective.is_beyond:
                self._search()
            specs = self.candidates.specs
            kept = {*self.candidates.always, *(rounds[-1].kept if rounds else specs)}
            finalists = [each for each in specs if each in kept]
            self._measure(finalists, self.held_out, "held-out text")
            if self._truncating is not None:
                self._measure_truncation(self._truncating)
        self.rounds, self.finalists = rounds, finalists

    def planned(self) -> dict[str, Any]:
        """Returns results.json as far as it is known before the run."""
        return {"model": self.model_facts, "data": self.corpus.facts, "protocol": self._protocol()}

    def result(self) -> Recommendation:
        """Returns the recommendation."""
        evidence = Evidence(
            losses=self.losses,
            candidates=self.candidates,
            objective=self.objective,
            rounds=self.rounds,
            finalists=self.finalists,
            held_out=self.held_out,
            deployment=self._deployment(),
            tolerance=self.options.tolerance,
            vocabulary=self.vocabulary,
        )
        return Recommendation(
            model={**self.model_facts, "trained_length": self.objective.trained},
            data=self.corpus.facts,
            protocol=self._protocol(),
            versions=fingerprints.versions(),
            evidence=evidence,
        )

    @cached_property
    def model_facts(self) -> ModelFacts:
        """The "model" part of results.json."""
        return fingerprints.describe(self.scorer.model, self.options.path)

    @cached_property
    def facts(self) -> Facts:
        """The facts that every number depends on, besides a task's own."""
        return {
            "kind": Recommendation.kind,
            **{name: self.model_facts[name] for name in ("weights", "config_sha256", "dtype")},
            "logits_bytes": self.options.logits_bytes,
            "scoring": SCORING,
            **fingerprints.arithmetic(self.scorer.model),
            "text": self.corpus.sha256,
            "tokens": fingerprints.tokens_sha256(self.corpus.documents),
            "bos": self.corpus.bos,
        }

    # --- measuring ---

    def _measure(self, specs: Sequence[str], windows: Sequence[int], title: str) -> CandidateLosses:
        """Measures candidates on windows in all processes, and returns all losses so far."""
        part = self._part(windows)
        sizes = [len(document.ids) for document in part.documents]
        tasks = []
        for spec in specs:
            for one in self._passes_of(spec):
                length = one.lengths[-1]
                plan = plan_pass(sizes, length, None, self.corpus.has_bos, self.batch_tokens)
                finish = partial(self._keep, spec, one.lengths, windows)
                scores = self._scoring(one.tables, part.documents, self.corpus.bos)
                tasks.append(task_of(title, plan, length, one.tables, scores, finish, windows=list(windows)))
        distinct = {str(task.facts): task.plan for task in tasks}  # others with the same tables share them
        self.fed += sum(plan.cost.positions for plan in distinct.values())
        self._carry_out(tasks, part)
        return self.losses

    def _carry_out(self, tasks: Sequence[Task], part: Corpus) -> None:
        """Runs tasks; every process gets the first one's losses, and so makes the same decisions."""
        runner = self._runner()
        runner.take(tasks)
        if runner.left:
            self._check(runner.left[0], part)
        runner.run(
            {
                "kind": Recommendation.kind,
                "facts": self.facts,
                "lengths": list(self.objective.lengths),
                "batch_tokens": self.batch_tokens,
                "schedules": self.candidates.specs,
            }
        )
        self.losses = self._group.from_leader(self.losses)

    def _keep(
        self, spec: str, lengths: Sequence[int], windows: Sequence[int], nll: Sequence[np.ndarray], _: int
    ) -> None:
        """Sums the losses of a pass; the columns beyond the trained length belong to the pass at the target."""
        columns = [*lengths, *((BEYOND, FAR, OTHERS) if lengths[-1] == self.objective.target else ())]
        for number, each in zip(windows, nll, strict=True):
            masks = self._masks[number]
            self.losses.put(spec, number, {column: _sum(each, masks[column]) for column in columns})

    def _part(self, windows: Sequence[int]) -> Corpus:
        """Returns the corpus with some of its windows alone."""
        part = copy.copy(self.corpus)
        part.documents = [self.corpus.documents[number] for number in windows]
        part.windows = windows_by_document(self.corpus.windows, windows)
        return part

    def _passes_of(self, spec: str) -> list[HeldPass]:
        """Returns the passes of a candidate: one at the target, or one for each table where they follow the length."""
        if spec not in self._passes:
            held = self.variants[spec].tables(self.objective.needed)
            if all(tables.frozen_at is None for tables in held.values()):
                held = dict.fromkeys(self.objective.lengths, held[self.objective.target])
            self._passes[spec] = passes_of(held)
        return self._passes[spec]

    def _run_race(self) -> list[Round]:
        specs, always = self.candidates.specs, self.candidates.always
        if len(specs) <= len(always):
            self._measure(specs, self.race, "the race's text")
            return []
        numbers = count(1)

        def measure(left: Sequence[str], windows: Sequence[int]) -> CandidateLosses:
            title = f"round {next(numbers)}: {len(left)} schedules"
            self.notes.tell(f"{title}, {len(windows)} window{'s' * (len(windows) != 1)} more")
            return self._measure(left, windows, title)

        return run_race(specs, self.race, always, self._most, measure)

    @property
    def _most(self) -> float:
        """The share of candidates that stays in a round at most."""
        sizes = len(self.candidates.specs), len(self.candidates.always), self.race, self.held_out
        return share_kept(*sizes, self._truncation_positions / self.objective.target)

    # --- baselines ---

    @cached_property
    def _truncation_plan(self) -> tuple[Truncating | None, str]:
        """Truncation on the text that decides, where it costs no more than the finalists; and a note for the user."""
        if trained_length(self.scorer.model) != self.objective.short:
            return None, ""
        finalists = FINALISTS + len(self.candidates.always)
        rest = finalists * len(self.held_out) * self.objective.target
        return Truncating.of(self.scorer.model, self._part(self.held_out), rest, self.batch_tokens)

    # --- what a loaded model does, and servers do otherwise ---

    def _ready(self) -> AbstractContextManager[object]:
        return evaluating(self.scorer.model)

    def _scoring(self, tables: HeldTables, documents: Sequence[Document], bos: int | None) -> ScoresBatches:
        return Executor(self.scorer, documents, bos, self.notes.warn)

    def _runner(self) -> Runner:
        work = partial(memory.work, self.scorer.model)
        return Runner(self.facts, self._store, self._group, self.notes, self.scorer.device, work, "in this round")

    def _check(self, first: Batch, part: Corpus) -> None:
        """Makes sure that the first batch can be scored."""
        Executor(self.scorer, part.documents, self.corpus.bos, self.notes.warn).check(first)

    @property
    def _truncating(self) -> Truncating | None:
        return self._truncation_plan[0]

    @property
    def _truncation_positions(self) -> int:
        return 0 if self._truncating is None else self._truncating.plan.cost.positions

    def _measure_truncation(self, truncating: Truncating) -> None:
        """Measures truncation: up to the trained length its losses are those of the model as it is."""
        short, has_bos = self.objective.short, self.corpus.has_bos
        before = np.zeros(prefix(short, has_bos).count, np.float32)

        def finish(found: Truncation) -> None:
            for number, nll in zip(self.held_out, found.nll, strict=True):
                whole = np.concatenate([before, nll])
                sums = {column: _sum(whole, mask) for column, mask in self._masks[number].items()}
                for length in self.objective.lengths:
                    sums[length] += self.losses.sum(AS_IS, number, min(length, short))
                self.losses.put(TRUNCATION, number, sums)

        part = self._part(self.held_out)
        self.fed += truncating.plan.cost.positions
        self._carry_out([truncating.task(self._scoring(truncating.tables, part.documents, None), finish)], part)

    def _search(self) -> None:
        """Adds the schedule that a search finds on the text of the race, which shares nothing with what decides."""
        options = SearchOptions(
            budget_tokens=self._search_tokens,
            engine=self.options.engine,
            patching=self.options.patching,
            source=self.options.source,
            path=self.options.path,
            progress=self.notes,
            logits_bytes=self.options.logits_bytes,
        )
        documents, bos = self._part(self.race).documents, "no" if self.corpus.bos is None else self.corpus.bos
        try:
            windows = feed_text(documents, self.objective.target, None, bos, options, judged=False)
            run = SearchRun(self.scorer.model, windows, options, compared=False)
        except DataError as error:
            self.notes.warn(f"warning: nothing is searched: {error}")
            return
        run.run(self._store, self._group)
        self.fed += run.spent
        spec = self._group.from_leader(run.result().spec)
        self.candidates = self.candidates.with_searched(spec)
        self.variants.setdefault(spec, Variant(self.scorer.model, spec, self.options.patching))

    @property
    def _search_tokens(self) -> int:
        return self.options.search_tokens or SearchOptions.budget_tokens

    # --- notes and the record ---

    def _announce(self) -> None:
        goal, specs, documents = self.objective, self.candidates.specs, len(self.corpus.windows)
        tokens = goal.target * expected(len(specs), len(self.candidates.always), self.race, self.held_out, self._most)
        tokens += self._truncation_positions
        searched = self._search_tokens if self.options.search and goal.is_beyond else 0
        tokens += searched + goal.target * len(self.held_out) if searched else 0
        whole = len(specs) * len(self.corpus.documents) * goal.target
        if not goal.is_beyond:
            self.notes.tell(f"{wording.not_needed(goal)} The text is measured on the model as it is alone.")
        self.notes.tell(
            f"candidates: {len(specs)}; {documents:,} document{'s' * (documents != 1)}, "
            f"{len(self.corpus.documents):,} windows of {goal.target:,}; at most {tokens:,} tokens to feed "
            f"({tokens / whole:.0%} of the whole grid)" + (f", {searched:,} of them in the search" if searched else "")
        )
        if goal.is_beyond and not self.losses.has_interval(self.held_out):
            self.notes.warn(f"warning: {wording.too_short(self.corpus.windows, goal.target, self.candidates.served)}")
        given = [parse(each) for each in self.options.schedules]
        for note in (*repeated(given), *self.candidates.repeated):
            self.notes.tell(f"note: {note}; it is measured once")
        if self._truncation_plan[1]:
            self.notes.tell(self._truncation_plan[1])

    def _protocol(self) -> dict[str, object]:
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
            "rounds": [len(each.candidates) for each in self.rounds],
            "race_windows": len(self.race),
            "held_out_windows": len(self.held_out),
            "tokens_fed": self.fed,
            "grid_tokens": len(self.candidates.specs) * len(self.corpus.documents) * goal.target,
            "interval": f"{self.corpus.interval}, {PERCENT}",
            "batch_tokens": self.batch_tokens,
        }

    def _deployment(self) -> Deployment:
        model, options = self.scorer.model, self.options
        path = Path(self.model_facts["path"])  # the configuration there names the dtype of the weights
        stored = read_config(path) if (path / "config.json").is_file() else {}
        dtype = serving_dtype(stored, self.model_facts["dtype"])
        return Deployment(
            model=options.name or self.model_facts["path"],
            revision=options.revision,
            request=options.patching,
            cache=cache_of(model.config.get_text_config(), dtype),
            weights=self.model_facts["parameters"] * BYTES.get(dtype, 2),
            memory=options.memory if isinstance(options.memory, int) else None,
            engine=options.engine,
        )


def _sum(nll: np.ndarray, mask: np.ndarray) -> float:
    """Returns the fp64 sum of the losses in a mask; a pass of a shorter length has fewer."""
    return float(nll[mask[: len(nll)]].sum(dtype=np.float64))
