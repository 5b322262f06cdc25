"""Windows that a search feeds: pieces that go through the model one by one, and the weight of their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from ...data.windows import Window, truncated


@dataclass(frozen=True)
class Weighted:
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
class Stretch:
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


Weighing = Weighted | Stretch
"""Says what tokens count."""


@dataclass(frozen=True)
class Piece:
    """Tokens that go through the model at once.

    Attributes:
        ids: BOS included, int64 [positions].
        weighing: what its tokens count.
        share: what its loss counts in that of its window.
        lengths: where the NLL of all its tokens is noted, ascending; None notes its loss instead.
    """

    ids: torch.Tensor
    weighing: Weighing
    share: float = 1.0
    lengths: tuple[int, ...] | None = None

    def loss(self, nll: torch.Tensor) -> float:
        """Returns the weighted mean of its tokens' NLL [positions - 1], in nats."""
        return float((nll.double() * self.weighing.of(len(nll))).sum())

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
            Piece(ids[each.start : each.stop], Stretch(each.scored - each.start, each.stop - each.start), share)
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
            answer = self.prompts[-1].weighing
            assert isinstance(answer, Stretch)
            cut = len(self.prompts[-1].ids) - positions
            return [Piece(self.prompts[-1].ids[cut:], Stretch(answer.start - cut, answer.stop - cut))]
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
