"""What a search feeds: the windows of a text, and how often."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from ...errors import DataError
from ..data.chats import Given
from ..running.selection import Corpus
from .methods import gradient
from .methods.asking import WINDOWS, Allowance, least_candidates
from .options import SearchOptions
from .splitting import CHECKED, Split, split

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LEAST: dict[str, Callable[[Allowance], int]] = {
    "gradient": gradient.least,
    "evolution": least_candidates,
    "cma": least_candidates,
}
"""How many windows a method must feed at the least."""


def enough() -> int:
    """Returns how many windows any method can begin with, where two are held out.

    A smaller budget cuts the text into as many, so that it is split as it would be under the least budget that is
    accepted, which an error can name then.
    """
    smallest = Allowance(tuple(range(WINDOWS)), 2, 0, 0)
    return max(least(smallest) for least in LEAST.values()) + smallest.held_out


@dataclass(frozen=True)
class Feeding:
    """The windows that a search is fed, and how many.

    Attributes:
        corpus: the windows.
        split: which of them are held out.
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
    def texts(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The windows to learn from and those held out, BOS included, int64 [windows, positions]."""
        return self._ids(self.split.learned), self._ids(self.split.held_out)

    @cached_property
    def names(self) -> list[str]:
        """The document of each held-out window."""
        return [self.corpus.documents[number].name for number in self.split.held_out]

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
) -> Feeding:
    """Reads the text, and shares the budget out.

    Raises:
        DataError: too little text, or a budget too small for a step.
    """
    feeds = options.budget_tokens // target
    held_out = max(2, int(CHECKED * feeds / gradient.CHECKS))
    corpus = Corpus(documents, [target], tokenizer, bos, options.reading(max(enough(), feeds), target))
    parts = split(corpus.windows, held_out, options.seed)
    once_more = len(parts.held_out) if options.keep_short else 0  # under the model's own table
    allowance = Allowance(tuple(range(len(parts.learned))), len(parts.held_out), feeds - once_more, options.seed)
    least = LEAST[options.method](allowance)
    if allowance.feeds < least:
        raise DataError(
            f"budget_tokens={options.budget_tokens} has no room for a step at {target} tokens; give at least "
            f"budget_tokens={(least + once_more) * target}",
            "budget_tokens",
        )
    return Feeding(corpus, parts, allowance)
