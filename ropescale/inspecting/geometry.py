"""The rotary geometry of a layer type, pair by pair, before and after a schedule."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from ..configs.configuration import Configuration
from ..rope import Rope
from ..schedules import Frequencies

SAME = 1e-9
"""The relative difference below which two frequencies count as equal."""

NEARLY_MOST = 0.999
"""A pair divided by this share of the largest divisor counts as divided (resonance rounds every pair differently)."""


@dataclass(frozen=True)
class Pair:
    """A rotary pair before and after a schedule.

    Attributes:
        pair: its index; 0 turns fastest.
        inv_freq: radians per token.
        wavelength: tokens per full turn, infinite for a pair that never turns.
        turns: full turns inside the trained length, or inside the attention window.
        completes_a_turn: whether this pair completed a full turn in training.
        new_inv_freq: radians per token under the schedule.
        new_wavelength: tokens per full turn under the schedule.
        new_turns: full turns inside the target length, or the window, under the schedule.
        divisor: ``inv_freq / new_inv_freq``, the slowdown.
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
    """The rotary geometry of a layer type, before and after a schedule.

    Attributes:
        layer_type: ``all`` for a model with one table for every layer.
        rope: the geometry that a schedule builds on.
        schedule: the schedule as text; None without one.
        frequencies: the schedule's result.
        target_length: the context, in tokens, of ``frequencies`` and the new turns.
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
    scaling: Mapping[str, object] | None = None
    window: int | None = None
    varies: bool = False
    name: str | None = None

    def seen(self, length: int) -> int:
        """Returns how many tokens of a text of this length these layers attend to."""
        return length if self.window is None else min(length, self.window)

    def turns(self) -> list[float]:
        """Returns every pair's full turns inside the trained length or the attention window."""
        return [self.seen(self.rope.original_length) / _wavelength(f) for f in self.rope.inv_freq()]

    @property
    def label(self) -> str | None:
        """The schedule, with the length of its frequencies if these change with it."""
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
        if self.frequencies is None:
            return before
        new = self.frequencies.inv_freq
        # infinite for a stopped pair, NaN for a pair that never turned
        divisors = [pair.inv_freq / f if f else math.inf if pair.inv_freq else math.nan for pair, f in zip(before, new)]
        most = max((d for d in divisors if math.isfinite(d)), default=1.0)
        length = self.seen(self.target_length or self.rope.original_length)
        return [
            replace(
                pair,
                new_inv_freq=f,
                new_wavelength=_wavelength(f),
                new_turns=length / _wavelength(f),
                divisor=divisor,
                kind=_kind(divisor, most),
            )
            for pair, f, divisor in zip(before, new, divisors)
        ]

    def unturned(self) -> list[int]:
        """Returns the pairs that complete no turn inside the trained length or the attention window."""
        return [pair.pair for pair in self.pairs() if not pair.completes_a_turn]

    def to_dict(self) -> dict[str, object]:
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
            "table": [
                {key: value for key, value in asdict(pair).items() if value is not None} for pair in self.pairs()
            ],
        }


def _wavelength(inv_freq: float) -> float:
    return 2 * math.pi / inv_freq if inv_freq else math.inf


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


_HEAD = 128
"""The head size for which the paper computed its bound."""

_BLOCK = 512
_SAME = 1e-9

_MOST = 2**18
"""The most distances to check, evenly spaced: about a second of one core with 64 pairs."""


def least_theta(length: float) -> float:
    """Returns the paper's fit of the smallest theta for a context in tokens and heads of 128: ``0.0424 L^1.628``.

    Figure 1 of the paper. Smaller heads need more.
    """
    return 0.0424 * length**1.628


@dataclass(frozen=True)
class Reversals:
    """Distances at which a random token gets more attention than a similar one.

    Attributes:
        first: the smallest such distance, in tokens.
        share: their share among the checked distances.
    """

    first: int
    share: float


def reversals(inv_freq: Sequence[float], length: int, still: float = 0.0) -> Reversals | None:
    """Finds the distances below ``length`` at which ``still + sum_i cos(m inv_freq_i)`` is negative.

    Args:
        inv_freq: radians per token, of each pair.
        length: the context, in tokens.
        still: pairs of coordinates that do not rotate.

    Returns:
        None if there are none. Above a length of 262,144, evenly spaced distances are checked.
    """
    step = -(-length // _MOST) | 1  # odd, so that it detects pairs with a power of two as their wavelength
    distances = range(0, length, step)
    # With e(x) = (cos x f, sin x f), sum cos((a - b) f) = e(a) . e(b) = pairs - |e(a) - e(b)|^2 / 2: one call in C.
    farthest = math.sqrt(2 * (len(inv_freq) + still)) + _SAME
    near = [_embedding(-distance, inv_freq) for distance in distances[:_BLOCK]]
    found: list[int] = []
    for start in range(0, len(distances), _BLOCK):
        block, here = distances[start : start + _BLOCK], _embedding(distances[start], inv_freq)
        found += [distance for distance, each in zip(block, near) if math.dist(here, each) > farthest]
    return Reversals(found[0], len(found) / len(distances)) if found else None


def _embedding(position: int, inv_freq: Sequence[float]) -> tuple[float, ...]:
    angles = [position * f for f in inv_freq]
    return (*map(math.cos, angles), *map(math.sin, angles))


def bound_warnings(geometries: Iterable[Geometry], configuration: Configuration) -> Iterator[str]:
    """Yields a warning for every layer type whose theta is too small for its target length."""
    unrotated = configuration.section.get("qk_nope_head_dim")  # latent attention rotates a separate slice
    beside = unrotated if isinstance(unrotated, int) and unrotated > 0 else 0
    for geometry in geometries:
        length = geometry.seen(geometry.target_length or geometry.rope.original_length)
        table = list(geometry.frequencies.inv_freq) if geometry.frequencies else geometry.rope.inv_freq()
        series = _series(table, geometry.rope.rotary_dim)
        if series and geometry.rope.rotary_dim >= _HEAD and series[0] >= least_theta(length * series[1]):
            continue  # the paper's fit is for such heads
        still = (geometry.rope.head_dim - geometry.rope.rotary_dim + beside) / 2
        negative = reversals(table, length, still)
        if negative is None:
            continue
        own = series[0] if series and series[1] == 1 else None
        which = f"theta {geometry.rope.theta:,.0f} is too small"
        if geometry.frequencies is not None:
            which += f", under {geometry.schedule} too,"
            which = which if own is None else f"{geometry.schedule} makes theta {own:,.0f}, too small"
        layers = "" if geometry.layer_type == "all" else f" ({geometry.layer_type})"
        enough = ""
        if own is not None and own < least_theta(length):
            three_digits = float(f"{least_theta(length):.3g}")
            enough = f"; heads of {_HEAD} need about {three_digits:,.0f}"
        yield (
            f"{which} for {length:,} tokens{layers}: at {100 * negative.share:.2g}% of the distances, first at "
            f"{negative.first:,}, similar tokens get less attention than random ones (Men et al. 2024, "
            f"arXiv:2405.14591), which retrieval shows and perplexity may not{enough}"
        )


def _series(table: Sequence[float], rotary_dim: int) -> tuple[float, float] | None:
    """Returns theta and the step of frequencies ``step theta^(-2i/d)``; None for other frequencies."""
    if len(table) < 2 or min(table) <= 0 or table[0] <= table[-1]:
        return None
    step, last = table[0], len(table) - 1
    ratio = (table[-1] / step) ** (1 / last)
    if any(abs(f / (step * ratio**i) - 1) > _SAME for i, f in enumerate(table)):
        return None
    return ratio ** (-rotary_dim / 2), step
