"""What a search found, beside what there is without it, on the same windows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from ...errors import RopescaleError
from ..running.truncating import SHARES
from ..running.variants import AS_IS, AsTrained, Variant, trained_length
from .families.family import Point
from .families.space import Space
from .feeds.supplying import Supply
from .losses.table_gradients import LiveTables
from .methods.asking import Ask, Reply
from .searched import FOUND, TRUNCATION

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Part:
    """A question, and what is read from the answer.

    Attributes:
        names: of the schedules, one for each point.
        lengths: those that are read from it; the last one is fed.
        ask: the question; a point without numbers leaves the tables that are live.
        within: makes the tables live.
    """

    names: Sequence[str]
    lengths: Sequence[int]
    ask: Ask
    within: Callable[[], AbstractContextManager[None]]


class Judging:
    """Measures the start, what was found, the model as it is, and truncation.

    Args:
        start: the name of the schedule that the search started at.
        lengths: where the losses are wanted, ascending; the first is the trained one.
        kept: whether the model's own table is kept up to the trained length.

    Attributes:
        curves: by schedule and length, the NLL of each window in nats per token; empty until it is known.
    """

    def __init__(
        self, live: LiveTables, space: Space, start: str, lengths: Sequence[int], feeding: Supply, kept: bool
    ) -> None:
        self._live, self._space, self._start, self._lengths, self._kept = live, space, start, lengths, kept
        self._feeding = feeding
        self.curves: dict[str, dict[int, list[float]]] = {}

    def parts(self, found: Point) -> list[Part]:
        """Returns what is asked where these numbers were found."""
        trained, space = self._lengths[0], self._space
        searched = self._part((self._start, FOUND), self._lengths, self._live.patched, (space.start, found))
        own = self._part((FOUND,), (trained,), self._live.patched, (space.base,)) if self._kept else None
        return [*self._as_is, searched, *filter(None, [own, self._truncated])]

    @property
    def stride(self) -> int | None:
        """The tokens that each window of truncation scores; None where it is not measured."""
        return self._truncated.ask.stride if self._truncated else None

    def tokens(self, parts: Iterable[Part]) -> int:
        """Counts the tokens that parts feed."""
        return sum(self._feeding.tokens(part.ask) for part in parts)

    def take(self, part: Part, answer: Reply) -> None:
        """Keeps an answer."""
        for name, losses, windows in zip(part.names, answer.losses, answer.by_length, strict=True):
            curve = self.curves.setdefault(name, {})
            for length in part.lengths:
                place = self._lengths.index(length)
                curve[length] = list(losses) if part.ask.stride else [each[place] for each in windows]

    def _part(
        self,
        names: Sequence[str],
        lengths: Sequence[int],
        within: Callable[[], AbstractContextManager[None]],
        points: tuple[Point, ...] = ((),),
    ) -> Part:
        return Part(names, lengths, Ask(points, self._feeding.measured, held_out=True, positions=lengths[-1]), within)

    @cached_property
    def _model(self) -> nn.Module:
        return self._live.model

    @cached_property
    def _as_is(self) -> list[Part]:
        """One pass at the longest length, or one for each table where it follows the length."""
        held = Variant(self._model, AS_IS, {}).tables(self._lengths)
        found = []
        for rotation, tables in {tables.rotation: tables for tables in held.values()}.items():  # of the longest
            shared = [length for length in self._lengths if held[length].rotation == rotation]
            found.append(self._part((AS_IS,), shared, tables.live))
        return found

    @cached_property
    def _truncated(self) -> Part | None:
        """Truncation at the smallest stride that costs no more than all the rest; None where it cannot be."""
        trained, target = self._lengths[0], self._lengths[-1]
        if trained_length(self._model) != trained:
            return None
        try:
            tables = AsTrained(self._model).tables([trained])[trained]
        except RopescaleError:
            return None
        rest = self._feeding.most + self.tokens(self._as_is)
        asks = [
            Ask(((),), self._feeding.measured, held_out=True, positions=trained, stride=max(1, trained // share))
            for share in SHARES
        ]
        ask = next((each for each in asks if self._feeding.tokens(each) <= rest), asks[-1])
        return Part((TRUNCATION,), (target,), ask, tables.live)
