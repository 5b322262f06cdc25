"""Feeds a search with the windows of a text, and shares its budget out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ....errors import DataError
from ...data.chats import Given
from ...data.documents import check_ids
from ...metrics.stored import DataFacts, positions_of
from ...running.fingerprints import tokens_sha256
from ...running.selection import Corpus
from ...store import Facts
from ..losses.windows import Piece, Texts, TextWindow, Weighted
from ..methods import gradient
from ..methods.asking import WINDOWS, Allowance, Ask
from ..options import SearchOptions
from .splitting import CHECKED, MOST_JUDGES, Split, split

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def enough() -> int:
    """Returns how many windows a search can begin with, where two are held out.

    A smaller budget cuts the text into as many, so that it is split as it would be under the least budget that is
    accepted, which an error can name then.
    """
    smallest = Allowance(tuple(range(WINDOWS)), 2, 0, 0)
    return gradient.least(smallest) + smallest.held_out


@dataclass(frozen=True)
class Feeding:
    """The windows of a text that a search is fed, and how many.

    Attributes:
        corpus: the windows.
        split: which of them choose, and which judge.
        allowance: what the method may use.
    """

    corpus: Corpus
    split: Split
    allowance: Allowance

    @property
    def target(self) -> int:
        """The length that the windows have, BOS included."""
        return self.corpus.lengths[-1]

    @property
    def bos_option(self) -> str | int:
        """The argument ``bos``."""
        return self.corpus.bos_option

    @property
    def names(self) -> list[str]:
        """The document of each window that chooses, and then of each that judges."""
        return [self.corpus.documents[number].name for number in self._held_out]

    @property
    def measured(self) -> tuple[int, ...]:
        """The numbers, among those held out, of the windows that judge; of those that choose where there are none."""
        choose = len(self.split.held_out)
        return tuple(range(choose, len(self._held_out)) if self.split.judges else range(choose))

    @property
    def about(self) -> str:
        """Says what is learned from, and what is held out."""
        held = self.split
        whole = f"{held.documents} documents" if held.documents else "the end of the only document"
        judging = f", {len(held.judges)} to judge by (as many documents)" if held.judges else ""
        return (
            f"windows of {self.target:,}: {len(held.learned)} to learn from, {len(held.held_out)} to choose by "
            f"({whole}){judging}"
        )

    @property
    def most(self) -> int:
        """The tokens that may be fed in all."""
        return self.allowance.feeds * self.target

    @property
    def said(self) -> dict[str, object]:
        """Nothing: a text is the usual objective."""
        return {}

    @property
    def data(self) -> DataFacts:
        """The "data" part of results.json."""
        return self.corpus.facts

    @property
    def facts(self) -> Facts:
        """The facts that the answers depend on."""
        corpus = self.corpus
        return {"text": corpus.sha256, "tokens": tokens_sha256(corpus.documents), "bos": corpus.bos}

    def check_ids(self, vocabulary: int) -> None:
        """Refuses ids that are not in the model's vocabulary.

        Raises:
            DataError: names the document, the position and the id.
        """
        check_ids(self.corpus.documents, vocabulary, self.corpus.bos)

    def texts(self, lengths: tuple[int, ...], within: float) -> Texts:
        """Returns the windows, all of whose tokens count.

        Args:
            lengths: where the loss of those held out is noted, ascending; the first is the trained one.
            within: how much a token counts whose context is within the trained length.
        """
        weighted = Weighted(lengths[0], within)

        def windows(numbers: Iterable[int]) -> list[TextWindow]:
            return [TextWindow(Piece(ids, weighted, lengths=lengths)) for ids in self._ids(numbers)]

        return Texts(windows(self.split.learned), windows(self._held_out))

    def tokens(self, ask: Ask) -> int:
        """Counts the tokens that a question feeds."""
        fed = ask.positions or self.target
        beyond = positions_of([self.target - fed], fed, ask.stride) if ask.stride else 0
        return ask.forwards * (fed + beyond)

    @property
    def _held_out(self) -> tuple[int, ...]:
        return self.split.held_out + self.split.judges

    def _ids(self, windows: Iterable[int]) -> torch.Tensor:
        first = [] if self.corpus.bos is None else [self.corpus.bos]
        size = self.target - len(first)
        return torch.tensor([[*first, *self.corpus.documents[number].ids[:size]] for number in windows])


def feeding(
    documents: Iterable[Given] | Mapping[str, Iterable[Given]],
    target: int,
    tokenizer: PreTrainedTokenizerBase | None,
    bos: str | int,
    options: SearchOptions,
    judged: bool = True,
) -> Feeding:
    """Reads the text, and shares the budget out.

    Args:
        judged: whether some documents are to judge what is found.

    Raises:
        DataError: too little text, or a budget too small for a step.
    """
    feeds = options.budget_tokens // target
    held_out = max(2, int(CHECKED * feeds / gradient.CHECKS))
    windows = max(enough(), feeds) + (MOST_JUDGES if judged else 0)
    corpus = Corpus(documents, [target], tokenizer, bos, options.reading(windows, target))
    parts = split(corpus.windows, held_out, options.seed, judged)
    return Feeding(corpus, parts, allowance_of(options, target, len(parts.learned), len(parts.held_out)))


def allowance_of(options: SearchOptions, size: int, learned: int, held_out: int, aside: int = 0) -> Allowance:
    """Shares the budget out.

    Args:
        size: tokens of a window.
        learned, held_out: how many windows there are.
        aside: tokens of all checks that are beyond so many for each held-out window.

    Raises:
        DataError: the budget is too small for a step.
    """
    feeds = (options.budget_tokens - aside) // size
    allowance = Allowance(tuple(range(learned)), held_out, feeds, options.seed)
    least = gradient.least(allowance)
    if allowance.feeds < least:
        raise DataError(
            f"budget_tokens={options.budget_tokens} has no room for a step at {size} tokens; give at least "
            f"budget_tokens={least * size + aside}",
            "budget_tokens",
        )
    return allowance
