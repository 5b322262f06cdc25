"""The numbers of a finished search, of which its figures are made."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..metrics.stored import Measured
from ..statistics.intervals import LEVEL, Estimate, ratio
from .methods.asking import Check
from .options import KEYS, TEXT

FOUND = "found"
"""What the tables call the schedule that was found."""

AS_IS, TRUNCATION = "as-is", "truncation"
"""The model without a schedule: given everything, and given only its last tokens, as many as it was trained at."""

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
        names: the document of each window that is measured.
        proved: whether these windows chose nothing.
        checks: the windows that choose, each time they were fed; the first under ``start``.
        found: the check that was best.
        steps: of each point that was tried on the text to learn from, the tokens fed until then, and its loss.
        tables: the frequencies, by layer type.
        spent: tokens fed in all.
        curves: by schedule and length, the NLL of each window that is measured: as it is, where the search started,
            found, and at the target truncation; empty where nothing is measured.
        beside: tokens that this took, besides those of the search.
    """

    start: str
    spec: str
    lengths: tuple[int, ...]
    names: Sequence[str]
    proved: bool
    checks: Sequence[Check]
    found: Check
    steps: Sequence[tuple[int, float]]
    tables: Mapping[str, Divided]
    spent: int
    curves: Mapping[str, Mapping[int, Sequence[float]]]
    beside: int

    @property
    def held(self) -> str:
        """Says what was held out: a text, or prompts."""
        return HELD[str(self.protocol.get("objective", TEXT))]

    @property
    def kept(self) -> bool:
        """Whether the model's own table is kept up to the trained length."""
        return bool(self.protocol.get("keep_short"))

    def is_own(self, length: int) -> bool:
        """Whether the found schedule is the model's own table at a length, because that is kept."""
        return self.kept and length == self.lengths[0]

    def estimate(self, values: Sequence[float], level: float = LEVEL) -> Estimate:
        """Returns the mean of the windows that are measured, with an interval over their documents."""
        groups = {name: [v for n, v in zip(self.names, values, strict=True) if n == name] for name in self.names}
        return ratio(
            [math.fsum(each) for each in groups.values()], [float(len(each)) for each in groups.values()], level
        )
