"""Truncation beside every schedule: the model as it is, given only the last tokens, as many as it was trained at.

It is run under the tables that the model was trained with, in windows of the trained length L0 without BOS, a stride
apart, each of which scores its last tokens; on exactly the tokens at positions from L0 on of the measured windows. A
smaller stride leaves each token more context, L0 - stride at least, and takes more passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...errors import DataError, RopescaleError
from ..data.windows import Window, prefix, truncated
from ..metrics.stored import Truncation, positions_of
from ..scoring.batches import BatchPlan, plan_pass
from .runner import ScoresBatches, Task, task_of
from .selection import Corpus
from .variants import AsTrained, HeldTables, trained_length

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SHARES = (16, 8, 4, 2)
"""The strides that are tried, as parts of the trained length: the smallest that costs no more than the rest."""


def choose(corpus: Corpus, trained: int | None, rest: int, before: int | None = None) -> tuple[int | None, str]:
    """Decides on the stride: asked for, the one of the last run, or the smallest of a few that costs at most the rest.

    Args:
        trained: the trained length, if it is known.
        rest: the positions that all other passes feed.
        before: the stride of the last run with the same numbers, if there was one: another would run all of it again.

    Returns:
        The tokens that a window scores, None where it is left out; and what the user is told of it, "" for nothing.

    Raises:
        DataError: truncation is asked for and cannot be, or a stride leaves a token nothing before it.
    """
    options, longest = corpus.options, corpus.lengths[-1]
    refuse_impossible(options.asks_truncation, longest, trained)
    if options.truncation is False or options.stride is not None or trained is None or longest <= trained:
        return None, ""

    def positions(stride: int) -> int:
        return positions_of([longest - trained] * len(corpus.documents), trained, stride)

    known = options.truncation_stride or before
    if known is not None and known >= trained:
        raise DataError(
            f"truncation_stride {known} leaves a token nothing before it in windows of the trained {trained:,} "
            f"positions; use 1 to {trained - 1}",
            "truncation_stride",
        )
    *finer, coarsest = (max(1, trained // share) for share in SHARES)
    stride = known or next((each for each in (*finer, coarsest) if positions(each) <= rest), coarsest)
    fed = positions(stride)
    if known is None and fed > rest and options.truncation is None:
        return None, (
            f"truncation is left out: {fed:,} tokens, {fed / rest:.0%} of the rest; ask for truncation to measure it"
        )
    return stride, f"truncation at stride {stride:,} takes {fed:,} tokens more ({fed / rest:.0%})"


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
        length = trained_length(model)
        stride, said = choose(corpus, length, rest, before)
        if stride is None or length is None:
            return None, said
        try:
            tables = AsTrained(model).tables([length])[length]
        except RopescaleError as error:
            if asked := corpus.options.asks_truncation:
                raise DataError(f"{asked} is given, and it cannot be measured: {error}", asked) from error
            return None, f"truncation is not measured: {error}"

        return cls.planned(corpus, tables, length, stride, batch_tokens), said

    @classmethod
    def planned(cls, corpus: Corpus, tables: HeldTables, length: int, stride: int, batch_tokens: int) -> Truncating:
        """Plans its batches."""

        def windows(tokens: int, length: int, stride: int, _: bool) -> Iterator[Window]:
            return truncated(tokens, length, stride, corpus.has_bos)

        stop = prefix(corpus.lengths[-1], corpus.has_bos).stop  # of each document, up to the longest length
        plan = plan_pass([stop] * len(corpus.documents), length, stride, False, batch_tokens, windows)
        return cls(tables, length, stride, plan)

    def task(self, executor: ScoresBatches, finish: Callable[[Truncation], None]) -> Task:
        """Returns the task that runs it.

        Args:
            executor: puts no BOS in front of windows.
            finish: takes the losses for the results.
        """

        def finished(nll: list[np.ndarray], split: int) -> None:
            finish(Truncation(self.length, self.stride, self.tables.table_sha256, nll, split))

        title = f"truncation to {self.length:,}"
        return task_of(title, self.plan, self.length, self.tables, executor, finished, truncation=self.stride)
