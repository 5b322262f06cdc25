"""Measures candidates on some of the windows: the model is loaded once, and tables are swapped.

Measures truncation, and the schedule that a search finds, beside the fixed schedules.

Recommends a schedule: a race of candidates on half of the text, and a decision on the other half.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from ...checkpoints.locating import read_config
from ...errors import DataError
from ...keywords import refuse_unknown
from ...lengths import parse_length
from ...models.patching import configuration_before
from ...models.rotary_modules import evaluating, unwrapped, whole_config
from ...planning.sharing import repeated
from ...schedules.reading import specs
from ..data import documents as data_documents
from ..data.chats import Given
from ..data.documents import Document
from ..data.far_repeats import far_repeats
from ..data.windows import prefix
from ..metrics.stored import ModelFacts, Truncation
from ..parallel.processes import Group, World
from ..running import fingerprints
from ..running.estimates import announce_time
from ..running.preparing import Checkpoint, tell_left_out
from ..running.progress import Notes
from ..running.runner import Runner, Task, carry_out, task_of
from ..running.selection import Corpus
from ..running.truncating import Truncating
from ..running.variants import HeldPass, Variant, passes_of, trained_length
from ..scoring import memory
from ..scoring.batches import Batch, plan_pass
from ..scoring.executor import Executor
from ..scoring.scorer import SCORING, Scorer
from ..searching.options import SearchOptions
from ..searching.running import SearchRun
from ..searching.windows import feeding
from ..statistics.intervals import PERCENT
from ..store import Facts, Store
from . import wording
from .candidates import AS_IS, Lineup, Objective, asked
from .deployment import BYTES, Deployment, cache_of, serving_dtype
from .evidence import TRUNCATION, Evidence
from .losses import BEYOND, FAR, OTHERS, CandidateLosses, Column, held_windows
from .options import RecommendKeywords, RecommendOptions
from .race import FINALISTS, Round, expected, parted, race, share_kept
from .results import Recommendation

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from ..data.sources import TextSource


@dataclass
class Meter:
    """Measures candidates, and keeps their losses.

    Attributes:
        scorer: scores under the live tables.
        corpus: all the windows.
        objective: what is minimised, and the lengths.
        variants: the model under each candidate, by spec.
        losses: all that is measured so far.
        fed: the tokens that went through the model, finished ones of an earlier run included.
    """

    scorer: Scorer
    corpus: Corpus
    objective: Objective
    variants: Mapping[str, Variant]
    losses: CandidateLosses
    batch_tokens: int
    notes: Notes
    facts: Facts
    fed: int = 0
    _readings: dict[str, list[HeldPass]] = field(default_factory=dict)

    def measure(
        self, candidates: Sequence[str], windows: Sequence[int], title: str, store: Store, group: Group, about: Facts
    ) -> CandidateLosses:
        """Measures candidates on windows, in all processes, and returns all losses so far.

        Args:
            title: of the progress.
            store: finished batches are taken from it and put into it.
            about: what the run is, for the next one in the same folder.
        """
        part = self.part(windows)
        executor = Executor(self.scorer, part.documents, self.corpus.bos, self.notes.warn)
        tasks = [self._task(each, reading, windows, part, executor, title)
                 for each in candidates for reading in self.readings(each)]  # fmt: skip
        distinct = {str(task.facts): task.plan for task in tasks}  # others with the same tables and windows share them
        self.fed += sum(plan.cost.positions for plan in distinct.values())
        self.carry_out(tasks, executor, store, group, about)
        return self.losses

    def carry_out(self, tasks: Sequence[Task], executor: Executor, store: Store, group: Group, about: Facts) -> None:
        """Runs tasks, and gives every process the losses."""
        runner = Runner(self.facts, store, group, self.notes, self.scorer.device)
        runner.take(tasks)
        if runner.left:
            executor.check(runner.left[0])
        runner.run(about)
        self.losses = group.from_leader(self.losses)

    def part(self, windows: Sequence[int]) -> Corpus:
        """Returns the corpus with some of its windows alone."""
        part = copy.copy(self.corpus)
        part.documents = [self.corpus.documents[number] for number in windows]
        part.windows = held_windows(self.corpus.windows, windows)
        return part

    def readings(self, candidate: str) -> list[HeldPass]:
        """Returns the passes of a candidate: one at the target, or one for each table where they follow the length."""
        if candidate not in self._readings:
            held = self.variants[candidate].tables(self.objective.needed)
            if all(tables.frozen_at is None for tables in held.values()):
                held = dict.fromkeys(self.objective.lengths, held[self.objective.target])
            self._readings[candidate] = passes_of(held)
        return self._readings[candidate]

    def _task(
        self, candidate: str, reading: HeldPass, windows: Sequence[int], part: Corpus, executor: Executor, title: str
    ) -> Task:
        sizes = [len(document.ids) for document in part.documents]
        length = reading.lengths[-1]
        plan = plan_pass(sizes, length, None, self.corpus.has_bos, self.batch_tokens)

        def finish(nll: list[np.ndarray], split: int) -> None:
            """Sums the losses of a pass."""
            for column, masks in self.masks(windows).items():
                if column in reading.lengths if isinstance(column, int) else length == self.objective.target:
                    self.losses.put(candidate, column, sums(windows, nll, masks))

        return task_of(title, plan, length, reading.tables, executor, finish, windows=list(windows))

    def batch(self, windows: Sequence[int]) -> Batch:
        """Returns the first batch of a pass at the target over some windows."""
        sizes = [len(document.ids) for document in self.part(windows).documents]
        return plan_pass(sizes, self.objective.target, None, self.corpus.has_bos, self.batch_tokens).batches[0]

    def masks(self, windows: Sequence[int]) -> dict[Column, list[np.ndarray]]:
        """Returns, per column, which scored tokens of each window belong to it; bool [tokens scored at the target]."""
        documents = [self.corpus.documents[number] for number in windows]
        every = [masks_of(each, self.objective, self.corpus.has_bos) for each in documents]
        return {column: [each[column] for each in every] for column in self.losses.columns}


def masks_of(document: Document, objective: Objective, bos: bool) -> dict[Column, np.ndarray]:
    """Returns, per column, which scored tokens of a window belong to it; bool [tokens scored at the target]."""
    whole = prefix(objective.target, bos)
    counted = np.ones(whole.count, bool)
    if document.scored is not None:
        counted = np.asarray(document.scored[whole.scored : whole.stop], bool)
    found: dict[Column, np.ndarray] = {}
    for length in objective.lengths:
        found[length] = counted & (np.arange(whole.count) < prefix(length, bos).count)
    beyond = counted & ~found[objective.short]
    far = np.asarray(far_repeats(document.ids, objective.short)[whole.scored : whole.stop], bool)
    return {**found, BEYOND: beyond, FAR: beyond & far, OTHERS: beyond & ~far}


def empty(corpus: Corpus, objective: Objective) -> CandidateLosses:
    """Returns the losses of nothing yet: the windows, the columns and how many tokens each has."""
    masks = [masks_of(each, objective, corpus.has_bos) for each in corpus.documents]
    columns = list(masks[0])
    counts = np.array([[each[column].sum() for column in columns] for each in masks], np.float64)
    weights: dict[Column, float] = {**objective.weights}
    return CandidateLosses(corpus.windows, columns, counts, weights)


def sums(windows: Sequence[int], nll: Sequence[np.ndarray], masks: Sequence[np.ndarray]) -> dict[int, float]:
    """Returns, per window, the fp64 sum of the losses in a mask."""
    return {
        number: float(losses[mask[: len(losses)]].sum(dtype=np.float64))
        for number, losses, mask in zip(windows, nll, masks, strict=True)
    }


@dataclass(frozen=True)
class PlannedTruncation:
    """Truncation on the text that decides: the model as it is, given only the last tokens.

    Attributes:
        truncating: its windows; None where it is not measured.
        said: what the user is told of it.
    """

    truncating: Truncating | None
    said: str

    @classmethod
    def of(cls, meter: Meter, windows: Sequence[int], finalists: int) -> PlannedTruncation:
        """Plans it where it costs no more than the finalists do.

        Args:
            finalists: how many candidates are measured on these windows.
        """
        goal, model = meter.objective, meter.scorer.model
        if trained_length(model) != goal.short:
            return cls(None, "")
        rest = finalists * len(windows) * goal.target
        return cls(*Truncating.of(model, meter.part(windows), rest, meter.batch_tokens))

    @property
    def positions(self) -> int:
        """How many tokens it feeds."""
        return 0 if self.truncating is None else self.truncating.plan.cost.positions

    def measure(self, meter: Meter, windows: Sequence[int], store: Store, group: Group, about: Facts) -> None:
        """Measures it, and keeps its losses beside those of the candidates."""
        if self.truncating is None:
            return

        def keep(found: Truncation) -> None:
            put(meter, windows, found.nll)

        executor = Executor(meter.scorer, meter.part(windows).documents, None, meter.notes.warn)
        meter.fed += self.positions
        meter.carry_out([self.truncating.task(executor, keep)], executor, store, group, about)


def put(meter: Meter, windows: Sequence[int], nll: Sequence[np.ndarray]) -> None:
    """Keeps the losses of truncation: up to the trained length those of the model as it is, and from there on its own.

    Args:
        nll: per window, the losses of the tokens at positions from the trained length on, fp32.
    """
    losses, goal = meter.losses, meter.objective
    first = prefix(goal.short, meter.corpus.has_bos).count
    whole = [np.concatenate([np.zeros(first, np.float32), each]) for each in nll]
    for column, masks in meter.masks(windows).items():
        beyond = sums(windows, whole, masks)
        known: Column | None = min(column, goal.short) if isinstance(column, int) else None
        before = {number: 0.0 if known is None else losses.sum(AS_IS, number, known) for number in windows}
        losses.put(TRUNCATION, column, {number: beyond[number] + before[number] for number in windows})


def searched(meter: Meter, windows: Sequence[int], options: RecommendOptions, store: Store, group: Group) -> str | None:
    """Returns the schedule that a search finds on some windows, as a spec; None where there are too few for one."""
    asked = SearchOptions(
        budget_tokens=options.search_tokens or SearchOptions.budget_tokens,
        engine=options.engine,
        patching=options.patching,
        source=options.source,
        path=options.path,
        progress=meter.notes,
        logits_bytes=options.logits_bytes,
    )
    texts = meter.part(windows).documents
    bos = "no" if meter.corpus.bos is None else meter.corpus.bos
    try:
        fed = feeding(texts, meter.objective.target, None, bos, asked, judged=False)
        run = SearchRun(meter.scorer.model, fed, asked, compared=False)
    except DataError as error:
        meter.notes.warn(f"warning: nothing is searched: {error}")
        return None
    run.run(store, group)
    meter.fed += run.spent
    return group.from_leader(run.result().spec)


def recommend(
    model: PreTrainedModel,
    documents: Iterable[Given] | Mapping[str, Iterable[Given]],
    target_length: int | str,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    bos: str | int = "auto",
    out: str | Path | None = None,
    fresh: bool = False,
    force: bool = False,
    **options: Unpack[RecommendKeywords],
) -> Recommendation:
    """Recommends the schedule for a model, a text and a target length, by measuring every one that comes into question.

    Half of the text races the candidates (see :mod:`.racing.halving`), the other half decides among those that are left
    (see :mod:`.racing.deciding`). Each schedule is patched in and reverted bit for bit.

    Args:
        model: a causal language model of transformers, possibly compiled or PEFT-wrapped.
        documents: as for :func:`ropescale.evals.perplexity`.
        target_length: the context wanted, as a number of tokens or like "32k".
        tokenizer: encodes strings, and says what BOS is.
        bos: "auto" (the tokenizer's, if it has one), "yes", "no", or an id.
        out: a folder for the result, and for every batch as soon as it is finished: the same call again continues.
        fresh: measure again what is stored in ``out``.
        force: replace results in ``out`` of another text or model, or more than these.
        options: the fields of :class:`RecommendOptions`, such as ``short_weight``.

    Raises:
        DataError: no document is long enough; weights or lengths that cannot be.
        ScheduleError: a schedule that does not fit, or no such engine.
        ConfigError: a model without rotary embedding, or one that is scaled already (``patching``).
        RunError: NaN or infinite logits, or a window that does not fit into memory.
        CheckpointError: ``out`` cannot be written, is not ours, or another process is writing into it.
    """
    own = ("tokenizer", "bos", "out", "fresh", "force")
    refuse_unknown("ropescale.evals.recommend", options, (*own, *RecommendKeywords.__annotations__))
    chosen, target = RecommendOptions(**options), parse_length(target_length)
    goal, lineup = asked(configuration_before(model), whole_config(unwrapped(model)).to_dict(), target, chosen)
    corpus = Corpus(documents, goal.lengths, tokenizer, bos, chosen.reading)
    run = RecommendRun(model, corpus, goal, lineup, chosen)
    return carry_out(run, None if out is None else Recommendation.writable_folder(out), fresh, force=force)


def prepare(
    checkpoint: Checkpoint, source: TextSource, target: int, bos: str | int, options: RecommendOptions, here: World
) -> RecommendRun:
    """Prepares a recommendation from names: reads and checks everything cheap first, and the weights last.

    Raises:
        RopescaleError: whatever cannot be read or measured.
    """
    goal, lineup = asked(*checkpoint.configs, target, options)
    texts, tokenizer = source.texts(), checkpoint.tokenizer()
    options = replace(options, split_special_tokens=source.split_special_tokens, path=checkpoint.folder)
    corpus = Corpus(texts, goal.lengths, tokenizer, bos, options.reading)
    notes = Notes.of(options.progress)
    checkpoint.warn(notes)
    tell_left_out(source, corpus, notes)
    return RecommendRun(checkpoint.model(here), corpus, goal, lineup, options)


class RecommendRun:
    """A recommendation that can be interrupted; :meth:`result` is for a finished one."""

    def __init__(
        self, model: PreTrainedModel, corpus: Corpus, goal: Objective, lineup: Lineup, options: RecommendOptions
    ) -> None:
        self.corpus, self.goal, self.lineup, self.options = corpus, goal, lineup, options
        self.notes = Notes.of(options.progress)
        self.scorer = Scorer(model, options.logits_bytes)
        data_documents.check_ids(corpus.documents, self.scorer.vocabulary, corpus.bos)
        self.variants = {each: Variant(model, each, options.patching) for each in self.specs}
        self.batch_tokens = options.batch_tokens or memory.default_batch_tokens(
            self.scorer.model, goal.target, options.logits_bytes
        )
        race, held_out = parted(corpus.windows)
        everything = list(range(len(corpus.documents)))
        self.race, self.held_out = (sorted(race), sorted(held_out)) if race else (everything, everything)
        self.rounds: list[Round] = []
        self.finalists: list[str] = []
        self.meter = Meter(
            scorer=self.scorer,
            corpus=corpus,
            objective=goal,
            variants=self.variants,
            losses=empty(corpus, goal),
            batch_tokens=self.batch_tokens,
            notes=self.notes,
            facts=self.facts,
        )

    @property
    def specs(self) -> list[str]:
        """The candidates, from the simplest."""
        return [each.spec for each in self.lineup.candidates]

    @property
    def finished(self) -> str:
        """How much is complete."""
        return "the decision" if self.finalists else ""

    def run(self, store: Store | None = None, group: Group | None = None) -> None:
        """Measures; what is finished is taken from the store, which leads to the same decisions.

        Args:
            store: finished batches are taken from it and put into it.
            group: the processes that share the work.
        """
        store, group = store or Store(), group or Group(World())
        self.meter.batch_tokens = group.from_leader(self._same_batch_tokens(store.last))
        if store.last:
            self.notes.tell("what is finished in the folder is not measured again")
        with evaluating(self.scorer.model):
            self._announce()
            rounds = self._race(store, group)
            self._search(store, group)
            kept = {*self.lineup.always, *(rounds[-1].kept if rounds else self.specs)}
            finalists = [each for each in self.specs if each in kept]
            self.meter.measure(finalists, self.held_out, "held-out text", store, group, self._about)
            self.truncation.measure(self.meter, self.held_out, store, group, self._about)
        self.rounds, self.finalists = rounds, finalists

    def planned(self) -> dict[str, Any]:
        """Returns results.json as far as it is known before the run."""
        return {"model": self.model_facts, "data": self.corpus.facts, "protocol": self._protocol()}

    def result(self) -> Recommendation:
        """Returns the recommendation."""
        evidence = Evidence(
            losses=self.meter.losses,
            lineup=self.lineup,
            objective=self.goal,
            rounds=self.rounds,
            finalists=self.finalists,
            held_out=self.held_out,
            serving=self._serving(),
            tolerance=self.options.tolerance,
            vocabulary=self.scorer.vocabulary,
        )
        return Recommendation(
            model={**self.model_facts, "trained_length": self.goal.trained},
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
        """The facts that every number depends on, next to a task's own."""
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

    @property
    def _about(self) -> Facts:
        return {
            "kind": Recommendation.kind,
            "facts": self.facts,
            "lengths": list(self.goal.lengths),
            "batch_tokens": self.meter.batch_tokens,
            "schedules": self.specs,
        }

    def _same_batch_tokens(self, last: Facts) -> int:
        """Returns the last run's estimate where it fits the same numbers: another estimate would be another plan."""
        recorded = last.get("batch_tokens")
        if self.options.batch_tokens is None and isinstance(recorded, int) and last.get("facts") == self.facts:
            return recorded
        return self.batch_tokens

    @cached_property
    def truncation(self) -> PlannedTruncation:
        """Truncation on the text that decides."""
        return PlannedTruncation.of(self.meter, self.held_out, FINALISTS + len(self.lineup.always))

    # --- running ---

    def _search(self, store: Store, group: Group) -> None:
        """Adds the schedule that a search finds on the text of the race, which has nothing of what decides."""
        if not self.options.search or self.goal.target <= self.goal.short:
            return
        spec = searched(self.meter, self.race, self.options, store, group)
        if spec is not None:
            self.lineup = self.lineup.with_searched(spec)
            self.variants.setdefault(spec, Variant(self.scorer.model, spec, self.options.patching))

    def _race(self, store: Store, group: Group) -> list[Round]:
        """Runs the rounds; all processes come to the same decisions, because the first one's losses are everybody's."""
        if len(self.specs) <= len(self.lineup.always):
            self.meter.measure(self.specs, self.race, "the race's text", store, group, self._about)
            return []
        numbers = count(1)

        def measure(candidates: Sequence[str], windows: Sequence[int]):
            title = f"round {next(numbers)}: {len(candidates)} schedules"
            self.notes.tell(f"{title}, {len(windows)} window{'s' * (len(windows) != 1)} more")
            return self.meter.measure(candidates, windows, title, store, group, self._about)

        return race(self.specs, self.race, self.lineup.always, self._most, measure)

    @property
    def _most(self) -> float:
        """The share of candidates that stays in a round at most."""
        besides = self.truncation.positions / self.goal.target
        return share_kept(len(self.specs), len(self.lineup.always), self.race, self.held_out, besides)

    # --- saying ---

    def _announce(self) -> None:
        sizes = len(self.specs), len(self.lineup.always), self.race, self.held_out
        tokens = self.goal.target * expected(*sizes, self._most) + self.truncation.positions
        searches = self.options.search and self.goal.target > self.goal.short
        searched = (self.options.search_tokens or SearchOptions.budget_tokens) if searches else 0
        tokens += searched + self.goal.target * len(self.held_out) if searched else 0
        whole = len(self.specs) * len(self.corpus.documents) * self.goal.target
        if self.goal.target <= self.goal.short:
            self.notes.tell(f"{wording.not_needed(self.goal)} The text is measured on the model as it is alone.")
        documents = f"{len(self.corpus.windows):,} document{'s' * (len(self.corpus.windows) != 1)}"
        self.notes.tell(
            f"candidates: {len(self.specs)}; {documents}, {len(self.corpus.documents):,} windows of "
            f"{self.goal.target:,}; at most {tokens:,} tokens to feed ({tokens / whole:.0%} of the whole grid)"
            + (f", {searched:,} of them in the search" if searched else "")
        )
        if self.goal.target > self.goal.short and not self.meter.losses.has_interval(self.held_out):
            self.notes.warn(f"warning: {wording.too_short(self.corpus.windows, self.goal.target)}")
        for said in (*repeated([specs.parse(each) for each in self.options.schedules]), *self.lineup.repeated):
            self.notes.tell(f"note: {said}; it is measured once")
        if self.truncation.said:
            self.notes.tell(self.truncation.said)
        executor = Executor(self.scorer, self.corpus.documents, self.corpus.bos, self.notes.warn)
        batch, left = self.meter.batch(self.race[:1]), [(tokens + (_BACKWARD - 1) * searched, self.goal.target)]
        with self.meter.readings(AS_IS)[-1].tables.live():
            announce_time(self.notes, executor, batch, left, " in one process")

    def _protocol(self) -> dict[str, object]:
        goal = self.goal
        return {
            "name": "recommendation",
            "target_length": goal.target,
            "trained_length": goal.short,
            "weights": {str(length): weight for length, weight in goal.weights.items()},
            "tolerance": self.options.tolerance,
            "engine": self.options.engine,
            **({"named": self.lineup.names} if self.lineup.names else {}),
            "bos": self.corpus.bos_option,
            "rounds": [len(each.candidates) for each in self.rounds],
            "race_windows": len(self.race),
            "held_out_windows": len(self.held_out),
            "tokens_fed": self.meter.fed,
            "grid_tokens": len(self.specs) * len(self.corpus.documents) * goal.target,
            "interval": f"{self.corpus.interval}, {PERCENT}",
            "batch_tokens": self.meter.batch_tokens,
        }

    def _serving(self) -> Deployment:
        """Returns what is needed to say the command, and the memory at the target."""
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


_BACKWARD = 3
"""How many times as long a token takes with its gradient."""
