"""Recommends a schedule: a race of candidates on half of the text, and a decision on the other half."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from ...checkpoints.locating import read_config
from ...keywords import refuse_unknown
from ...lengths import parse_length
from ...models.patching import configuration_before
from ...models.rotary_modules import evaluating, unwrapped, whole_config
from ...planning.sharing import repeated
from ...schedules.reading import specs
from ..data import documents as data_documents
from ..data.chats import Given
from ..metrics.stored import ModelFacts
from ..parallel.processes import Group, World
from ..running import fingerprints
from ..running.estimates import announce_time
from ..running.preparing import Checkpoint, tell_left_out
from ..running.progress import Notes
from ..running.runner import Facts, carry_out
from ..running.selection import Corpus
from ..running.variants import Variant
from ..scoring import memory
from ..scoring.executor import Executor
from ..scoring.scorer import SCORING, Scorer
from ..searching.options import SearchOptions
from ..statistics.intervals import PERCENT
from ..store import Store
from . import kv_cache, wording
from .candidates import AS_IS, Lineup
from .deployment import Deployment
from .evidence import Evidence
from .objective import Objective
from .options import RecommendKeywords, RecommendOptions
from .racing import halving
from .racing.besides import PlannedTruncation, searched
from .racing.halving import Round
from .racing.meter import Meter, empty
from .results import Recommendation
from .wish import asked

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from ..data.sources import TextSource


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
        race, held_out = halving.parted(corpus.windows)
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
        return PlannedTruncation.of(self.meter, self.held_out, halving.FINALISTS + len(self.lineup.always))

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

        return halving.race(self.specs, self.race, self.lineup.always, self._most, measure)

    @property
    def _most(self) -> float:
        """The share of candidates that stays in a round at most."""
        besides = self.truncation.positions / self.goal.target
        return halving.share_kept(len(self.specs), len(self.lineup.always), self.race, self.held_out, besides)

    # --- saying ---

    def _announce(self) -> None:
        sizes = len(self.specs), len(self.lineup.always), self.race, self.held_out
        tokens = self.goal.target * halving.expected(*sizes, self._most) + self.truncation.positions
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
        dtype = kv_cache.serving_dtype(stored, self.model_facts["dtype"])
        return Deployment(
            model=options.name or self.model_facts["path"],
            revision=options.revision,
            request=options.patching,
            cache=kv_cache.cache_of(model.config.get_text_config(), dtype),
            weights=self.model_facts["parameters"] * kv_cache.BYTES.get(dtype, 2),
            memory=options.memory if isinstance(options.memory, int) else None,
            engine=options.engine,
        )


_BACKWARD = 3
"""How many times as long a token takes with its gradient."""
