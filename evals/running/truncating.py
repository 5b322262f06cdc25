"""Truncation beside every schedule: the model as it is, given only the last tokens, as many as it was trained at.

It is run under the tables that the model was trained with, in windows of the trained length L0 without BOS, a stride
apart, each of which scores its last tokens; on exactly the tokens at positions from L0 on of the measured windows. A
smaller stride leaves each token more context, L0 - stride at least, and takes more passes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import DataError, RopescaleError
from ..data.windows import Window, prefix, truncated
from ..results.truncation import Truncation, positions_of
from ..resuming.batch_log import Scored
from ..resuming.finished_batches import Shelf
from ..scoring.executor import Executor
from .batches import Batch, BatchPlan, plan_pass
from .runner import Task
from .selection import Corpus
from .variants import AsTrained, HeldTables, trained_length

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SHARES = (16, 8, 4, 2)
"""The strides that are tried, as parts of the trained length: the smallest that costs no more than the rest."""


@dataclass(frozen=True)
class Choice:
    """Whether truncation is measured, and how.

    Attributes:
        length: the trained length.
        stride: the tokens that a window scores; None where it is left out.
        said: what the user is told of it; empty where nobody need know.
    """

    length: int
    stride: int | None
    said: str = ""


def choose(corpus: Corpus, trained: int | None, rest: int, before: int | None = None) -> Choice:
    """Decides on the stride: asked for, the one of the last run, or the smallest of a few that costs at most the rest.

    Args:
        trained: the trained length, if it is known.
        rest: the positions that all other passes feed.
        before: the stride of the last run with the same numbers, if there was one: another would run all of it again.

    Raises:
        DataError: truncation is asked for and cannot be, or a stride leaves a token nothing before it.
    """
    options = corpus.options
    refuse_impossible(options.asks_truncation, corpus.lengths[-1], trained)
    if options.truncation is False or options.stride is not None or trained is None or corpus.lengths[-1] <= trained:
        return Choice(0, None)
    stride = options.truncation_stride or before
    if stride is not None:
        _check(stride, trained)
        return _measured(corpus, trained, stride, rest)
    return _cheapest(corpus, trained, rest)


def refuse_impossible(asked: str, longest: int, trained: int | None) -> None:
    """Refuses truncation that is asked for and cannot be.

    Args:
        asked: the option that asks for it; "" for none.
        longest: the largest length that is measured.
        trained: the trained length, if it is known.

    Raises:
        DataError: it cannot be.
    """
    if asked and trained is None:
        raise DataError(f"{asked} is given, and the model does not say how long it was trained at; leave it out", asked)
    if asked and trained is not None and longest <= trained:
        raise DataError(
            f"{asked} is given, and no length is beyond the {trained:,} tokens of the model's training; give a longer "
            f"one, or leave {asked} out",
            asked,
        )


def _check(stride: int, trained: int) -> None:
    if stride >= trained:
        raise DataError(
            f"truncation_stride {stride} leaves a token nothing before it in windows of the trained {trained:,} "
            f"positions; use 1 to {trained - 1}",
            "truncation_stride",
        )


def _cheapest(corpus: Corpus, trained: int, rest: int) -> Choice:
    """Takes the smallest stride that costs no more than the rest; where none does, the largest if it is asked for."""
    strides = [max(1, trained // share) for share in SHARES]
    fits = next((each for each in strides if _fed(corpus, trained, each) <= rest), None)
    if fits is None and corpus.options.truncation is None:
        fed = _fed(corpus, trained, strides[-1])
        return Choice(
            trained,
            None,
            f"truncation (the model as it is, given only the last {trained:,} tokens) is left out: at stride "
            f"{strides[-1]:,} it would take {fed:,} tokens, {fed / rest:.0%} of the rest; truncation=True measures it",
        )
    return _measured(corpus, trained, fits or strides[-1], rest)


def _measured(corpus: Corpus, trained: int, stride: int, rest: int) -> Choice:
    fed = _fed(corpus, trained, stride)
    finer = max(1, trained // SHARES[0])
    more = f"; truncation_stride={finer} leaves each token more context" if stride > finer else ""
    return Choice(
        trained,
        stride,
        f"truncation (the model as it is, given only the last {trained:,} tokens, stride {stride:,}) takes {fed:,} "
        f"tokens more ({fed / rest:.0%}); truncation=False leaves it out{more}",
    )


def _fed(corpus: Corpus, trained: int, stride: int) -> int:
    """Counts the positions of all its windows."""
    beyond = corpus.lengths[-1] - trained
    return positions_of([beyond] * len(corpus.documents), trained, stride)


@dataclass(frozen=True)
class Truncating:
    """Truncation, planned.

    Attributes:
        tables: those that the model was trained with.
        length, stride: of its windows.
        plan: its batches.
    """

    tables: HeldTables
    length: int
    stride: int
    plan: BatchPlan

    @classmethod
    def of(
        cls, model: PreTrainedModel, corpus: Corpus, rest: int, batch_tokens: int, before: int | None = None
    ) -> tuple[Truncating | None, str]:
        """Plans truncation where it is to be measured, and returns what the user is told of it.

        Args:
            rest: the positions that all other passes feed.
            before: the stride of the last run with the same numbers, if there was one.
        """
        choice = choose(corpus, trained_length(model), rest, before)
        if choice.stride is None:
            return None, choice.said
        try:
            tables = AsTrained(model).tables([choice.length])[choice.length]
        except RopescaleError as error:
            if asked := corpus.options.asks_truncation:
                raise DataError(f"{asked} is given, and it cannot be measured: {error}", asked) from error
            return None, f"truncation is not measured: {error}"
        return cls.planned(tables, choice, corpus, batch_tokens), choice.said

    @classmethod
    def planned(cls, tables: HeldTables, choice: Choice, corpus: Corpus, batch_tokens: int) -> Truncating:
        """Plans the windows over each document up to the longest length."""
        stop = prefix(corpus.lengths[-1], corpus.has_bos).stop
        length, stride = choice.length, choice.stride or 1

        def windows(tokens: int, length: int, stride: int, _: bool) -> Sequence[Window]:
            return list(truncated(tokens, length, stride, corpus.has_bos))

        plan = plan_pass([stop] * len(corpus.documents), length, stride, False, batch_tokens, windows)
        return cls(tables, length, stride, plan)

    def task(self, executor: Executor, finish: Callable[[Truncation], None]) -> Task:
        """Returns the task that runs it.

        Args:
            executor: puts no BOS in front of windows.
            finish: takes the losses for the results.
        """

        def score(batch: Batch, lacking: Sequence[int]) -> list[Scored]:
            scored = executor.score(batch)
            self.tables.check()
            return [scored]

        def finished(shelves: Sequence[Shelf]) -> None:
            finish(self.losses(shelves[0]))

        facts = {"length": self.length, "rotation": self.tables.rotation, "plan": self.plan.sha256}
        about = [{**facts, "truncation": self.stride}]
        return Task(f"truncation to {self.length:,}", self.plan, about, score, finished, self.tables.live)

    def losses(self, shelf: Shelf) -> Truncation:
        """Returns the losses, once all batches are on the shelf."""
        nll = self.plan.assembled({number: each.nll for number, each in shelf.batches.items()})
        parts = sum(each.parts > 1 for each in shelf.batches.values())
        return Truncation(self.length, self.stride, self.tables.table_sha256, nll, parts)
