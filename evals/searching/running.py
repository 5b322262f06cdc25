"""Learns a schedule with the model's weights frozen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ...errors import DataError, RunError
from ...keywords import refuse_unknown
from ...lengths import parse_length
from ...models import patching
from ...models.rotary_modules import evaluating
from ...planning.plan import Plan, make_plan
from ...request import Request
from ..data import documents as data_documents
from ..data.chats import Given
from ..parallel.processes import Group, World
from ..running import fingerprints
from ..running.progress import Notes, Progress
from ..running.resuming import Facts, FolderStore, Store
from ..running.runner import carry_out
from ..running.selection import Corpus
from . import covariance, evolution, gradient
from .asking import Allowance, Ask, Check, Method, Reply
from .evaluating import Evaluator, Texts
from .family import Point
from .journal import FolderJournal, Journal, digest
from .keywords import SearchKeywords
from .learner import Learner, Weighted
from .live import LiveTables
from .options import SearchOptions
from .results import Learned, SearchResult, files_of, spec_line
from .shaping import space_of
from .space import Space
from .splitting import CHECKED, Split, split

if TYPE_CHECKING:
    from typing import Unpack

    from transformers import PreTrainedModel, PreTrainedTokenizerBase

SEARCHING = 1
"""Raised whenever the same model, text and options would give other answers, so that kept ones are not reused."""

METHODS: dict[str, Callable[[Space, Allowance], Method]] = {
    "gradient": gradient.search,
    "evolution": evolution.search,
    "cma": covariance.search,
}


def search(
    model: PreTrainedModel,
    documents: Iterable[Given],
    target_length: int | str,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    bos: str | int = "auto",
    out: str | Path | None = None,
    fresh: bool = False,
    **options: Unpack[SearchKeywords],
) -> SearchResult:
    """Learns the schedule under which ``model`` predicts this text best at ``target_length``, weights frozen.

    It starts at YaRN's default. Of the documents, some are held out: the schedule that does best on them is the result,
    and the result says how much better that is than YaRN's default.

    Args:
        model: a causal language model of transformers, possibly compiled or PEFT-wrapped.
        documents: as for :func:`ropescale.evals.perplexity`; each that is as long as ``target_length`` gives windows.
        target_length: positions that the model is to see, BOS included.
        tokenizer: encodes strings, and says what BOS is.
        bos: "auto" (the tokenizer's, if it has one), "yes", "no", or an id.
        out: a file for the schedule, ``factors.json``; beside it, a folder for the run, named ``factors-search``. Every
            step is kept there: the same call again continues where this one was interrupted.
        fresh: search again what is kept.
        options: the fields of :class:`.options.SearchOptions`, such as ``method`` or ``budget_tokens``.

    Raises:
        DataError: too little text, a budget too small for a step, or options that cannot be.
        ConfigError, ScheduleError: the model has no rotation that YaRN can change, or is longer than the target.
        RunError: NaN or infinite logits.
        CheckpointError: ``out`` cannot be written, is not ours, or another process is writing there.
    """
    refuse_unknown(
        "ropescale.evals.search", options, ("tokenizer", "bos", "out", "fresh", *SearchKeywords.__annotations__)
    )
    file, folder = (None, None) if out is None else files_of(out)
    run = SearchRun(model, documents, parse_length(target_length), tokenizer, bos, SearchOptions(**options))
    run.file = file
    return carry_out(run, folder, fresh)


@dataclass(frozen=True)
class Feeding:
    """What is fed, and how often.

    Attributes:
        corpus: the windows.
        split: which of them are held out.
        allowance: what the method may use.
    """

    corpus: Corpus
    split: Split
    allowance: Allowance

    @property
    def texts(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The windows to learn from and those held out, BOS included, int64 [windows, positions]."""
        return self._ids(self.split.learned), self._ids(self.split.held_out)

    @cached_property
    def names(self) -> list[str]:
        """The document of each held-out window."""
        return [self.corpus.documents[number].name for number in self.split.held_out]

    def _ids(self, windows: Iterable[int]) -> torch.Tensor:
        first = [] if self.corpus.bos is None else [self.corpus.bos]
        size = self.corpus.lengths[-1] - len(first)
        return torch.tensor([[*first, *self.corpus.documents[number].ids[:size]] for number in windows])


class SearchRun:
    """A search that can be interrupted."""

    def __init__(
        self,
        model: PreTrainedModel,
        documents: Iterable[Given],
        target: int,
        tokenizer: PreTrainedTokenizerBase | None,
        bos: str | int,
        options: SearchOptions,
    ) -> None:
        self.options, self.target, self.notes = options, target, Notes.of(options.progress)
        self.plan = _start(model, target, options)
        self.space = space_of(self.plan, target, options)
        self.trained = max(layer.rope.original_length for layer in self.plan.layers.values())
        self.learner = Learner(model, options.logits_bytes)
        self.feeding = _feeding(documents, target, tokenizer, bos, options)
        corpus = self.feeding.corpus
        data_documents.check_ids(corpus.documents, self.learner.vocabulary, corpus.bos)
        self.checks: list[Check] = []
        self.steps: list[tuple[int, float]] = []
        self.spent = 0
        self.file: Path | None = None
        self._found: Point | None = None

    @property
    def finished(self) -> str:
        """How much is complete."""
        return f"{len(self.checks)} checks" if self.checks else ""

    @property
    def lengths(self) -> tuple[int, ...]:
        """Where the held-out text's perplexity is given: the trained length, its doubles, and the target."""
        found = [self.trained]
        while 2 * found[-1] < self.target:
            found.append(2 * found[-1])
        return (*found, self.target)

    def run(self, store: Store | None = None, group: Group | None = None) -> None:
        """Searches; answers that are kept in the store's folder are not computed again."""
        group = group or Group(World())
        journal = self._journal(store, group)
        kept = group.from_leader(journal.kept)
        live = LiveTables(self.learner.model, self.plan)
        self._announce(len(kept))
        if store is not None and group.world.leads:
            store.begin({"kind": "search", "facts": self.facts})
        with live.patched(), evaluating(self.learner.model):
            learned, held_out = self.feeding.texts
            with torch.inference_mode():
                self.learner.check(held_out[0])
            texts = Texts(learned, held_out, self.lengths)
            weighted = Weighted(self.trained, self.options.within)
            evaluator = Evaluator(self.learner, live, self.space, texts, weighted, group)
            method = METHODS[self.options.method](self.space, self.feeding.allowance)
            self._drive(method, evaluator, iter(kept), journal, group)

    def _drive(
        self,
        method: Method,
        evaluator: Evaluator,
        kept: Iterator[tuple[str, Reply]],
        journal: Journal,
        group: Group,
    ) -> None:
        """Answers the method's questions until it has found its point."""
        total = self.feeding.allowance.feeds * self.target
        with Progress(f"search: {self.options.method}", total, self.notes.shown and group.world.leads) as progress:
            ask = next(method)
            while True:
                answer = _replayed(ask, kept)
                if answer is None:
                    answer = evaluator.answer(ask)
                    if group.world.leads:
                        journal.add(ask, answer)
                    progress.add(ask.forwards * self.target)
                self._note(ask, answer)
                try:
                    ask = method.send(answer)
                except StopIteration as end:
                    self._found = end.value
                    return

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
            data=self.feeding.corpus.facts,
            protocol=self._protocol,
            versions=fingerprints.versions(),
            start=self.start,
            spec=spec_line(learned.schedule),
            lengths=self.lengths,
            names=self.feeding.names,
            checks=self.checks,
            found=found,
            steps=self.steps,
            tables=learned.tables,
            spent=self.spent,
            learned=learned,
            file=self.file,
        )

    @property
    def start(self) -> str:
        """The schedule that the search starts at."""
        return f"yarn:factor={self.target / self.trained:g}"

    @property
    def _protocol(self) -> dict[str, object]:
        options = self.options
        named = ("method", "seed", "budget_tokens", "within", "keep_short", "engine")
        return {
            "name": "ropescale",
            **{name: getattr(options, name) for name in named},
            "numbers": len(self.space.names),
            "found": dict(zip(self.space.names, self._found or (), strict=True)),
            "target_length": self.target,
            "trained_length": self.trained,
            "bos": self.feeding.corpus.bos_option,
            "held_out": self.feeding.names,
        }

    @cached_property
    def model_facts(self) -> fingerprints.ModelFacts:
        """The model before any schedule."""
        return fingerprints.describe(self.learner.model, self.options.path)

    @cached_property
    def facts(self) -> Facts:
        """All that the answers depend on."""
        options, corpus = self.options, self.feeding.corpus
        named = ("method", "budget_tokens", "seed", "numbers", "keep_short", "engine", "within", "logits_bytes")
        return {
            **{name: self.model_facts[name] for name in ("weights", "config_sha256", "dtype")},
            **fingerprints.arithmetic(self.learner.model),
            **{name: getattr(options, name) for name in named},
            "patching": {key: value for key, value in options.patching.items() if value is not None},
            "target_length": self.target,
            "text": corpus.sha256,
            "tokens": fingerprints.tokens_sha256(corpus.documents),
            "bos": corpus.bos,
            "searching": SEARCHING,
        }

    def _journal(self, store: Store | None, group: Group) -> Journal:
        folder = store.folder if isinstance(store, FolderStore) and group.world.leads else None
        return Journal() if folder is None else FolderJournal(folder, self.facts)

    def _note(self, ask: Ask, answer: Reply) -> None:
        """Keeps what is shown of an answer."""
        self.spent += ask.forwards * self.target
        for point, losses, mean, number in zip(
            ask.points, answer.losses, answer.means, range(len(ask.points)), strict=True
        ):
            if ask.held_out:
                self.checks.append(Check(self.spent, point, mean, answer.by_length[number]))
            else:
                self.steps.append((self.spent, sum(losses) / len(losses)))

    def _announce(self, kept: int) -> None:
        """Says what will be fed."""
        feeding, tokens = self.feeding, self.feeding.allowance.feeds * self.target
        held = feeding.split
        whole = f"{held.documents} documents" if held.documents else "the end of the only document"
        self.notes.tell(
            f"search: {self.options.method} over {len(self.space.names)} numbers, at most {tokens:,} tokens in windows "
            f"of {self.target:,}: {len(held.learned)} to learn from, {len(held.held_out)} held out ({whole})"
        )
        if kept:
            self.notes.tell(f"resuming: {kept} answers are kept")


def _replayed(ask: Ask, kept: Iterator[tuple[str, Reply]]) -> Reply | None:
    """Returns the next answer that was kept, or None.

    Raises:
        RunError: it answers another question.
    """
    asked, answer = next(kept, ("", None))
    if answer is not None and asked != digest(ask):
        raise RunError("the kept steps are not those of this search; search again with fresh=True", "fresh")
    return answer


def _start(model: PreTrainedModel, target: int, options: SearchOptions) -> Plan:
    """Plans YaRN's default for the target length."""
    request = Request.of("yarn", **{**options.patching, "target_length": target})
    plan = make_plan(patching.configuration_before(model), request)
    trained = max(layer.rope.original_length for layer in plan.layers.values())
    if target <= trained:
        raise DataError(
            f"the target length {target} is the trained length; the model needs no schedule for it; give a longer one",
            "target_length",
        )
    return plan


def _feeding(
    documents: Iterable[Given],
    target: int,
    tokenizer: PreTrainedTokenizerBase | None,
    bos: str | int,
    options: SearchOptions,
) -> Feeding:
    """Reads the text, and shares the budget out."""
    feeds = options.budget_tokens // target
    held_out = max(1, int(CHECKED * feeds / gradient.CHECKS))
    corpus = Corpus(documents, [target], tokenizer, bos, options.reading(max(2, feeds), target))
    parts = split(corpus.windows, held_out, options.seed)
    allowance = Allowance(tuple(range(len(parts.learned))), len(parts.held_out), feeds, options.seed)
    if not gradient.steps_within(allowance):
        least = gradient.BATCH + gradient.CHECKS * len(parts.held_out)
        raise DataError(
            f"budget_tokens={options.budget_tokens} has no room for a step at {target} tokens; give at least "
            f"budget_tokens={least * target}",
            "budget_tokens",
        )
    return Feeding(corpus, parts, allowance)
