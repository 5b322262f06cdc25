"""The model as it is, on the held-out text of a search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..running.variants import AS_IS, HeldTables, Variant
from .methods.asking import Ask, Reply

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class UnchangedPart:
    """A question about the model under its own tables, and what is read from the answer.

    Attributes:
        ask: a point without numbers, which leaves the tables that are live.
        tables: the model's own, held at a length where they follow it.
        lengths: those that are read from it; the last one is fed.
    """

    ask: Ask
    tables: HeldTables
    lengths: tuple[int, ...]


class Unchanged:
    """The losses of the model as it is.

    Args:
        lengths: where they are wanted, ascending.
        windows: how many windows are held out.

    Attributes:
        lengths: as given.
        parts: what is fed: one pass at the longest length, or one for each table where it follows the length.
        losses: by length, the NLL in nats of each held-out window up to there; empty until it is known.
    """

    def __init__(self, model: nn.Module, lengths: Sequence[int], windows: int) -> None:
        held = Variant(model, AS_IS, {}).tables(lengths)
        self.parts: list[UnchangedPart] = []
        for rotation, tables in {tables.rotation: tables for tables in held.values()}.items():  # of the longest
            shared = tuple(length for length in lengths if held[length].rotation == rotation)
            ask = Ask(((),), tuple(range(windows)), held_out=True, positions=shared[-1])
            self.parts.append(UnchangedPart(ask, tables, shared))
        self.lengths, self.losses = lengths, dict[int, list[float]]()

    def take(self, part: UnchangedPart, answer: Reply) -> None:
        """Keeps an answer, whose windows have the NLL at every length of the search up to the one that was fed."""
        (windows,) = answer.by_length
        for place, length in enumerate(self.lengths):
            if length in part.lengths:
                self.losses[length] = [each[place] for each in windows]
