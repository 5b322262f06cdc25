"""One layer type's rotary geometry, pair by pair, and what a schedule makes of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace

from ..rope import Rope
from ..schedules import Frequencies

SAME = 1e-9
"""Two frequencies that differ by less than this, relative, are the same number to a reader."""

NEARLY_MOST = 0.999
"""A pair divided by this share of the largest divisor counts as divided (resonance rounds each by its own bit)."""


@dataclass(frozen=True)
class Pair:
    """One rotary pair before a schedule, and after it where there is one.

    Attributes:
        pair: its index; 0 turns fastest.
        inv_freq: radians per token.
        wavelength: tokens per full turn, infinite for a pair that never turns.
        turns: full turns inside the trained length, or inside the window of layers that see no more.
        completes_a_turn: whether the model has seen this pair turn all the way round in training.
        new_inv_freq: radians per token under the schedule.
        new_wavelength: tokens per full turn under the schedule.
        new_turns: full turns inside the target length, or the window, under the schedule.
        divisor: ``inv_freq / new_inv_freq``, how much slower it turns.
        kind: ``kept``, ``blended`` (slowed by less than the most), ``divided`` (by the most), ``faster``,
            ``stopped``, or ``still`` for a pair that did not turn before either.
    """

    pair: int
    inv_freq: float
    wavelength: float
    turns: float
    completes_a_turn: bool
    new_inv_freq: float | None = None
    new_wavelength: float | None = None
    new_turns: float | None = None
    divisor: float | None = None
    kind: str | None = None


@dataclass(frozen=True)
class Geometry:
    """One layer type's rotary geometry, and what a schedule makes of it.

    Attributes:
        layer_type: ``all`` for a model with one table for every layer.
        rope: the geometry that a schedule builds on.
        schedule: the schedule of the frequencies below, as text; None without one.
        frequencies: the schedule's result.
        target_length: the context, in tokens, that ``frequencies`` and the new turns are for.
        scaling: the scaling that the configuration has, as rope parameters; None without any.
        window: how far back these layers see, in tokens; None where that is the whole text.
        varies: whether the schedule's frequencies change with the length.
        name: what tables and pictures call the schedule, where that is not the schedule itself.
    """

    layer_type: str
    rope: Rope
    schedule: str | None = None
    frequencies: Frequencies | None = None
    target_length: int | None = None
    scaling: Mapping[str, object] | None = None
    window: int | None = None
    varies: bool = False
    name: str | None = None

    def seen(self, length: int) -> int:
        """Returns how many tokens of a text of this length a position of these layers sees."""
        return length if self.window is None else min(length, self.window)

    def turns(self) -> list[float]:
        """Returns the full turns of each pair inside what the layers saw in training."""
        return [self.seen(self.rope.original_length) / _wavelength(f) for f in self.rope.inv_freq()]

    @property
    def label(self) -> str | None:
        """The schedule, with the length of its frequencies where they change with it."""
        called = self.name or self.schedule
        if not self.varies or self.target_length is None:
            return called
        return f"{called}, as at {self.target_length:,} tokens"

    def pairs(self) -> list[Pair]:
        """Returns every pair, in order."""
        before = [
            Pair(i, f, _wavelength(f), turns, turns >= 1)
            for i, (f, turns) in enumerate(zip(self.rope.inv_freq(), self.turns()))
        ]
        return list(self._changed(before)) if self.frequencies else before

    def _changed(self, before: list[Pair]) -> Iterator[Pair]:
        assert self.frequencies is not None
        new = list(self.frequencies.inv_freq)
        divisors = [_divisor(pair.inv_freq, f) for pair, f in zip(before, new)]
        most = max((d for d in divisors if math.isfinite(d)), default=1.0)
        length = self.seen(self.target_length or self.rope.original_length)
        for pair, f, divisor in zip(before, new, divisors):
            yield replace(
                pair,
                new_inv_freq=f,
                new_wavelength=_wavelength(f),
                new_turns=length / _wavelength(f),
                divisor=divisor,
                kind=_kind(divisor, most),
            )

    def unturned(self) -> list[int]:
        """Returns the pairs that never complete a turn inside what the layers saw in training."""
        return [pair.pair for pair in self.pairs() if not pair.completes_a_turn]

    def to_dict(self) -> dict[str, object]:
        """Returns everything as plain data, in full precision."""
        rope = self.rope
        return {
            "layer_type": self.layer_type,
            "head_dim": rope.head_dim,
            "rotary_dim": rope.rotary_dim,
            "pairs": rope.pairs,
            "rope_theta": rope.theta,
            "original_length": rope.original_length,
            "max_position_embeddings": rope.max_length,
            "window": self.window,
            "scaling": dict(self.scaling) if self.scaling else None,
            "unturned_pairs": self.unturned(),
            "schedule": self.schedule,
            "target_length": self.target_length,
            "attention_scale": self.frequencies.attention_scale if self.frequencies else None,
            "table": [
                {key: value for key, value in asdict(pair).items() if value is not None} for pair in self.pairs()
            ],
        }


def _wavelength(inv_freq: float) -> float:
    return 2 * math.pi / inv_freq if inv_freq else math.inf


def _divisor(before: float, after: float) -> float:
    """Returns ``before / after``: infinite for a pair that was stopped, NaN for one that never turned."""
    if not after:
        return math.inf if before else math.nan
    return before / after


def _kind(divisor: float, most: float) -> str:
    if math.isnan(divisor):
        return "still"
    if math.isinf(divisor):
        return "stopped"
    if abs(divisor - 1) <= SAME:
        return "kept"
    if divisor < 1:
        return "faster"
    return "divided" if divisor >= most * NEARLY_MOST else "blended"
