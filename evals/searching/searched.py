"""The numbers of a finished search, of which its figures are made."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..results.stored import Measured
from ..statistics.intervals import Estimate, ratio
from .methods.asking import Check
from .options import KEYS, TEXT

FOUND = "found"
"""What the tables call the schedule that was found."""

AS_IS = "as-is"

HELD = {TEXT: "text", KEYS: "prompts"}
"""What an objective holds out."""

Divided = tuple[Sequence[float], Sequence[float], Sequence[float]]
"""The frequencies of each pair in radians per token: the model's own, at the start of the search, and those found."""


@dataclass(repr=False)
class Searched(Measured):
    """The numbers of a finished search.

    Attributes:
        start: the schedule that it started at.
        spec: the schedule that was found, as ``--schedule`` takes it.
        lengths: ascending, where the held-out text's perplexity is known.
        names: the document of each held-out window.
        checks: the held-out windows, each time they were fed; the first under ``start``.
        found: the check that was best.
        steps: of each point that was tried on the text to learn from, the tokens fed until then, and its loss.
        tables: the frequencies, by layer type.
        spent: tokens fed in all.
        short: the NLL of each held-out window up to the first length under the model's own table, where that is kept.
        unchanged: by length, the NLL of each held-out window under the model as it is; empty where it is not known.
        beside: tokens that this took, besides those of the search.
    """

    start: str
    spec: str
    lengths: tuple[int, ...]
    names: Sequence[str]
    checks: Sequence[Check]
    found: Check
    steps: Sequence[tuple[int, float]]
    tables: Mapping[str, Divided]
    spent: int
    short: Sequence[float] | None
    unchanged: Mapping[int, Sequence[float]]
    beside: int

    @property
    def held(self) -> str:
        """Says what was held out: a text, or prompts."""
        return HELD[str(self.protocol.get("objective", TEXT))]

    def at(self, check: Check, length: int) -> list[float]:
        """Returns the NLL of each held-out window up to a length at a check, in nats per token."""
        if self.short is not None and check is self.found and self.is_own(length):
            return list(self.short)
        return [each[self.lengths.index(length)] for each in check.by_length]

    @property
    def curves(self) -> dict[str, dict[int, Sequence[float]]]:
        """By schedule and length, the NLL of each held-out window: as it is, where the search started, and found."""
        checks = {self.start: self.checks[0], FOUND: self.found}
        found: dict[str, dict[int, Sequence[float]]] = {AS_IS: dict(self.unchanged)} if self.unchanged else {}
        for name, check in checks.items():
            found[name] = {length: self.at(check, length) for length in self.lengths}
        return found

    def is_own(self, length: int) -> bool:
        """Whether the found schedule is the model's own table at a length, because that is kept."""
        return self.short is not None and length == self.lengths[0]

    def estimate(self, values: Sequence[float]) -> Estimate:
        """Returns the mean of the held-out windows, with an interval over their documents."""
        groups = {name: [v for n, v in zip(self.names, values, strict=True) if n == name] for name in self.names}
        return ratio([math.fsum(each) for each in groups.values()], [float(len(each)) for each in groups.values()])
