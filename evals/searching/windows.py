"""The windows of a text that a search feeds, the weights of their tokens, and how they are split.

Windows are those of ``ropescale eval``: BOS, then as many tokens as the target length leaves; the first begins where
its document does, the others are evenly spaced in it. Whole documents are held out, so that no held-out window shares
text with those that the search learns from; of a single document, its last windows are held out. Where there are enough
documents, some of them choose nothing: they judge what was found by their first windows.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, pairwise, zip_longest
from typing import TYPE_CHECKING

import torch

from ...errors import DataError
from ..data.chats import Given
from ..data.documents import check_ids
from ..data.windows import Window, truncated
from ..metrics.stored import DataFacts, positions_of
from ..running.fingerprints import tokens_sha256
from ..running.selection import Corpus, PerplexityOptions
from ..store import Facts
from . import gradient
from .gradient import WINDOWS, Query, TokenBudget
from .options import SearchOptions

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


CHECKED = 0.2
"""The share of the budget that goes to held-out windows, at most, where they are checked often."""

_HELD_DOCUMENTS = 4
"""One document in so many is held out, and of a single one so great a part."""


LEAST_JUDGES, MOST_JUDGES = 10, 30
"""The documents that judge: a quarter, at least and at most so many."""

ENOUGH = 16
"""The fewest documents of which some judge."""


@dataclass(frozen=True)
class Split:
    """The windows by number, as the corpus has them.

    Attributes:
        learned: those to learn from, in the order of the seed.
        held_out: those that choose, sorted.
        documents: how many documents choose; 0 where windows of the only one do.
        judges: those that judge, sorted, each of a document of its own; none where there are few documents.
    """

    learned: tuple[int, ...]
    held_out: tuple[int, ...]
    documents: int
    judges: tuple[int, ...] = ()


def split(windows: Sequence[int], held_out: int, seed: int, judged: bool = True) -> Split:
    """Splits windows by document.

    Args:
        windows: of each document, how many it has.
        held_out: how many windows choose, at most.
        judged: whether some documents are to judge.

    Raises:
        DataError: there is only one window.
    """
    if sum(windows) < 2:
        raise DataError(
            "the text has one window of the target length, and a search needs two: one to learn from, and one held "
            "out; give more text, or a shorter target_length",
            "documents",
            "target_length",
        )
    rng = random.Random(f"ropescale search {seed}")
    apart = [list(range(first, stop)) for first, stop in pairwise([0, *accumulate(windows)])]
    judges: list[list[int]] = []
    if len(apart) == 1:  # a quarter of the only document at most
        (learned,), documents = apart, 0
        start = len(learned) - min(held_out, max(1, len(learned) // _HELD_DOCUMENTS))
        learned, kept = learned[:start], learned[start:]
    else:
        apart = rng.sample(apart, len(apart))
        if judged and len(apart) >= ENOUGH:
            count = min(MOST_JUDGES, max(LEAST_JUDGES, len(apart) // _HELD_DOCUMENTS))
            judges, apart = apart[:count], apart[count:]
        documents = min(held_out, max(1, len(apart) // _HELD_DOCUMENTS))
        in_turn = chain.from_iterable(zip_longest(*apart[:documents]))  # the first of each document, then the second
        kept = [window for window in in_turn if window is not None][:held_out]
        learned = list(chain.from_iterable(apart[documents:]))
    rng.shuffle(learned)
    return Split(tuple(learned), tuple(sorted(kept)), documents, tuple(sorted(first for first, *_ in judges)))


@dataclass(frozen=True)
class ContextWeights:
    """All tokens of a text count.

    Attributes:
        trained: positions up to the trained length.
        within: how much a token counts whose context is within the trained length; others count 1.
    """

    trained: int
    within: float = 2.0

    def of(self, tokens: int) -> torch.Tensor:
        """Returns the weights of a window's scored tokens, float64 [tokens], which add up to 1."""
        context = torch.arange(1, tokens + 1)  # positions before the token, BOS included
        weights = torch.where(context < self.trained, self.within, 1.0).double()
        return weights / weights.sum()


@dataclass(frozen=True)
class SpanWeights:
    """The tokens of one stretch count, all alike.

    Attributes:
        start, stop: its positions, a half-open range.
    """

    start: int
    stop: int

    def of(self, tokens: int) -> torch.Tensor:
        """Returns the weights of a piece's scored tokens, float64 [tokens], which add up to 1."""
        weights = torch.zeros(tokens, dtype=torch.float64)
        weights[self.start - 1 : self.stop - 1] = 1 / (self.stop - self.start)  # the first position is not scored
        return weights


Weights = ContextWeights | SpanWeights
"""Says what tokens count."""


@dataclass(frozen=True)
class Piece:
    """Tokens that go through the model at once.

    Attributes:
        ids: BOS included, int64 [positions].
        weights: what its tokens count.
        share: what its loss counts in that of its window.
        lengths: where the NLL of all its tokens is noted, ascending; None notes its loss instead.
    """

    ids: torch.Tensor
    weights: Weights
    share: float = 1.0
    lengths: tuple[int, ...] | None = None

    def loss(self, nll: torch.Tensor) -> float:
        """Returns the weighted mean of its tokens' NLL [positions - 1], in nats."""
        return float((nll.double() * self.weights.of(len(nll))).sum())

    def noted(self, nll: torch.Tensor) -> tuple[float, ...]:
        """Returns what is shown by length, of its tokens' NLL [positions - 1], in nats per token."""
        if self.lengths is None:
            return (self.loss(nll),)
        return tuple(float(nll[: length - 1].double().mean()) for length in self.lengths if length <= len(self.ids))


@dataclass(frozen=True)
class TextWindow:
    """A window of a text, in one piece."""

    whole: Piece

    def pieces(self, positions: int | None, stride: int | None = None) -> Sequence[Piece]:
        """Returns its beginning of so many positions, None for all of it; with a stride also what truncation feeds."""
        if positions is None or stride is None:
            return [replace(self.whole, ids=self.whole.ids[:positions])]
        ids = self.whole.ids
        windows = [Window(0, positions, 1), *truncated(len(ids), positions, stride, bos=False)]  # BOS is among the ids
        return [
            Piece(ids[each.start : each.stop], SpanWeights(each.scored - each.start, each.stop - each.start), share)
            for each in windows
            for share in [each.count / (len(ids) - 1)]
        ]


@dataclass(frozen=True)
class PromptSet:
    """Prompts of several lengths, ascending, a piece each."""

    prompts: Sequence[Piece]

    def pieces(self, positions: int | None, stride: int | None = None) -> Sequence[Piece]:
        """Returns those of no more positions, None for all of them; with a stride the end of the longest alone."""
        if positions is None:
            return self.prompts
        if stride is not None:
            answer = self.prompts[-1].weights
            assert isinstance(answer, SpanWeights)
            cut = len(self.prompts[-1].ids) - positions
            return [Piece(self.prompts[-1].ids[cut:], SpanWeights(answer.start - cut, answer.stop - cut))]
        kept = [each for each in self.prompts if len(each.ids) <= positions]
        return [replace(each, share=1 / len(kept)) for each in kept]


@dataclass(frozen=True)
class Texts:
    """The windows of a search.

    Attributes:
        learned, held_out: by their numbers.
    """

    learned: Sequence[TextWindow | PromptSet]
    held_out: Sequence[TextWindow | PromptSet]


def enough() -> int:
    """Returns how many windows a search can begin with, where two are held out.

    A smaller budget cuts the text into as many, so that it is split as it would be under the least budget that is
    accepted, which an error can name then.
    """
    smallest = TokenBudget(tuple(range(WINDOWS)), 2, 0)
    return gradient.least(smallest) + smallest.held_out


@dataclass(frozen=True)
class TextFeed:
    """The windows of a text that a search is fed, and how many.

    Attributes:
        corpus: the windows.
        split: which of them choose, and which judge.
        allowance: what the method may use.
    """

    corpus: Corpus
    split: Split
    allowance: TokenBudget

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
        weighted = ContextWeights(lengths[0], within)

        def windows(numbers: Iterable[int]) -> list[TextWindow]:
            return [TextWindow(Piece(ids, weighted, lengths=lengths)) for ids in self._ids(numbers)]

        return Texts(windows(self.split.learned), windows(self._held_out))

    def tokens(self, query: Query) -> int:
        """Counts the tokens that a question feeds."""
        fed = query.positions or self.target
        beyond = positions_of([self.target - fed], fed, query.stride) if query.stride else 0
        return query.forwards * (fed + beyond)

    @property
    def _held_out(self) -> tuple[int, ...]:
        return self.split.held_out + self.split.judges

    def _ids(self, windows: Iterable[int]) -> torch.Tensor:
        first = [] if self.corpus.bos is None else [self.corpus.bos]
        size = self.target - len(first)
        return torch.tensor([[*first, *self.corpus.documents[number].ids[:size]] for number in windows])


def feed_text(
    documents: Iterable[Given] | Mapping[str, Iterable[Given]],
    target: int,
    tokenizer: PreTrainedTokenizerBase | None,
    bos: str | int,
    options: SearchOptions,
    judged: bool = True,
) -> TextFeed:
    """Reads the text, and shares the budget out.

    Args:
        judged: whether some documents are to judge what is found.

    Raises:
        DataError: too little text, or a budget too small for a step.
    """
    feeds = options.budget_tokens // target
    held_out = max(2, int(CHECKED * feeds / gradient.CHECKS))
    windows = max(enough(), feeds) + (MOST_JUDGES if judged else 0)
    reading = PerplexityOptions(
        budget_tokens=windows * target,
        max_docs=options.max_docs,
        split_special_tokens=options.split_special_tokens,
        logits_bytes=options.logits_bytes,
        source=options.source,
    )
    corpus = Corpus(documents, [target], tokenizer, bos, reading)
    parts = split(corpus.windows, held_out, options.seed, judged)
    return TextFeed(corpus, parts, allowance_of(options, target, len(parts.learned), len(parts.held_out)))


def allowance_of(options: SearchOptions, size: int, learned: int, held_out: int, aside: int = 0) -> TokenBudget:
    """Shares the budget out.

    Args:
        size: tokens of a window.
        learned, held_out: how many windows there are.
        aside: tokens of all checks that are beyond so many for each held-out window.

    Raises:
        DataError: the budget is too small for a step.
    """
    feeds = (options.budget_tokens - aside) // size
    allowance = TokenBudget(tuple(range(learned)), held_out, feeds)
    least = gradient.least(allowance)
    if allowance.feeds < least:
        raise DataError(
            f"a budget of {options.budget_tokens} tokens has no room for a step at {size} tokens; give at "
            f"least {least * size + aside}",
            "budget_tokens",
        )
    return allowance
