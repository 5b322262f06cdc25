"""The rotary geometry of a layer type, pair by pair, before and after a schedule."""

import math
from dataclasses import asdict, dataclass, replace

from ..files import Data, Json, present
from ..rope import Rope
from ..schedules import Frequencies

SAME = 1e-9
"""The relative difference below which two frequencies count as equal."""

NEARLY_MOST = 0.999
"""A pair with at least this share of the largest divisor counts as divided; resonance rounds every pair differently."""


@dataclass(frozen=True)
class Pair:
    """A rotary pair before and after a schedule.

    Attributes:
        pair: the index of the pair; 0 turns fastest.
        inv_freq: radians per token.
        wavelength: tokens per full turn, infinite for a pair that never turns.
        turns: full turns inside the trained length, or inside the attention window.
        completes_a_turn: whether this pair completed a full turn in training.
        new_inv_freq: radians per token under the schedule.
        new_wavelength: tokens per full turn under the schedule.
        new_turns: full turns inside the target length, or the window, under the schedule.
        divisor: ``inv_freq / new_inv_freq``, the slowdown.
        kind: ``kept``, ``blended`` (divided by less than the largest divisor), ``divided`` (by the largest divisor),
            ``faster``, ``stopped``, or ``still`` for a pair that did not turn before the schedule either.
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
    """The rotary geometry of a layer type, before and after a schedule.

    Attributes:
        layer_type: ``all`` for a model with one table for every layer.
        rope: the geometry that a schedule builds on.
        schedule: the schedule as text; None without one.
        frequencies: the schedule's result.
        target_length: the length in tokens for which ``frequencies`` and the new turns are computed.
        scaling: the configuration's scaling, as rope parameters; None without scaling.
        window: the attention window in tokens; None for full attention.
        varies: whether the schedule's frequencies change with the length.
        name: the schedule's name in tables and plots, if it differs from the schedule's text.
    """

    layer_type: str
    rope: Rope
    schedule: str | None = None
    frequencies: Frequencies | None = None
    target_length: int | None = None
    scaling: Json | None = None
    window: int | None = None
    varies: bool = False
    name: str | None = None

    def seen(self, length: int) -> int:
        """Returns the number of tokens that these layers attend to in a text of this length."""
        return length if self.window is None else min(length, self.window)

    def turns(self) -> list[float]:
        """Returns every pair's full turns inside the trained length or the attention window."""
        return [self.seen(self.rope.original_length) / wavelength for wavelength in self.rope.wavelengths()]

    @property
    def label(self) -> str | None:
        """The schedule's name, with the target length if the frequencies change with the length."""
        called = self.name or self.schedule
        if not self.varies or self.target_length is None:
            return called
        return f"{called}, as at {self.target_length:,} tokens"

    def pairs(self) -> list[Pair]:
        """Returns every pair, in order."""
        before = self.rope.inv_freq()
        turns = self.turns()
        pairs = [
            Pair(i, f, wavelength, turns[i], turns[i] >= 1)
            for i, (f, wavelength) in enumerate(zip(before, self.rope.wavelengths()))
        ]
        if self.frequencies is None:
            return pairs
        new = self.frequencies
        length = self.seen(self.target_length or self.rope.original_length)
        divisors = []
        for b, f in zip(before, new.inv_freq):
            stopped = math.inf if b else math.nan  # NaN for a pair that never turned
            divisors.append(b / f if f else stopped)
        most = max((d for d in divisors if math.isfinite(d)), default=1.0)
        return [
            replace(
                pair,
                new_inv_freq=f,
                new_wavelength=wavelength,
                new_turns=length / wavelength,
                divisor=divisor,
                kind=_kind(divisor, most),
            )
            for pair, f, wavelength, divisor in zip(pairs, new.inv_freq, new.wavelengths, divisors)
        ]

    def unturned(self) -> list[int]:
        """Returns the pairs that complete no turn inside the trained length or the attention window."""
        return [pair.pair for pair in self.pairs() if not pair.completes_a_turn]

    def to_dict(self) -> Data:
        """Returns the geometry as plain data, in full precision."""
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
            "table": [present(asdict(pair)) for pair in self.pairs()],
        }


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
