"""The least theta for a length: Men et al. 2024, "Base of RoPE Bounds Context Length", arXiv:2405.14591.

A query is on average more similar to a token like itself than to a random one, at distance ``m``, by a multiple of
``sum_i cos(m f_i)`` (theorem 1). Where that sum is negative the random token gets more attention, and perplexity need
not show it. Coordinates that do not rotate count as ``f = 0``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ..configs.configuration import Configuration
from .geometry import Geometry

_HEAD = 128
"""Coordinates of the heads for which the paper computed its bound."""

_BLOCK = 512
_SAME = 1e-9

_MOST = 2**18
"""Distances that are looked at, evenly spread where there are more: about a second of one core with 64 pairs."""


def least_theta(length: float) -> float:
    """Returns the paper's fit of the smallest theta for a context in tokens, with heads of 128: ``0.0424 L^1.628``.

    Figure 1 of the paper. Smaller heads need more.
    """
    return 0.0424 * length**1.628


@dataclass(frozen=True)
class Reversals:
    """Distances at which a random token gets more attention than a similar one.

    Attributes:
        first: the smallest of them, in tokens.
        share: how many there are among the distances that were looked at.
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
        None where there are none. Of a length above 262,144, evenly spread distances are looked at.
    """
    step = -(-length // _MOST) | 1  # odd, so that no pair whose turn is a power of two hides
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
    """Yields a warning for each layer type whose theta is too small for the length that it is shown for."""
    unrotated = configuration.section.get("qk_nope_head_dim")  # latent attention turns a separate slice
    beside = unrotated if isinstance(unrotated, int) and unrotated > 0 else 0
    for geometry in geometries:
        length = geometry.seen(geometry.target_length or geometry.rope.original_length)
        if _suffices(geometry, length):
            continue
        still = (geometry.rope.head_dim - geometry.rope.rotary_dim + beside) / 2
        if found := reversals(_table(geometry), length, still):
            yield _warning(geometry, length, found)


def _table(geometry: Geometry) -> list[float]:
    return list(geometry.frequencies.inv_freq) if geometry.frequencies else geometry.rope.inv_freq()


def _suffices(geometry: Geometry, length: int) -> bool:
    """Whether the paper's fit says that theta is large enough; it is for heads of 128 or more and a series of theta."""
    series = _series(geometry)
    if series is None or geometry.rope.rotary_dim < _HEAD:
        return False
    theta, step = series
    return theta >= least_theta(length * step)


def _series(geometry: Geometry) -> tuple[float, float] | None:
    """Returns theta and the step of a token where the frequencies are ``step theta^(-2i/d)``; None otherwise."""
    table = _table(geometry)
    if len(table) < 2 or min(table) <= 0 or table[0] <= table[-1]:
        return None
    step, last = table[0], len(table) - 1
    ratio = (table[-1] / step) ** (1 / last)
    if any(abs(f / (step * ratio**i) - 1) > _SAME for i, f in enumerate(table)):
        return None
    return ratio ** (-geometry.rope.rotary_dim / 2), step


def _warning(geometry: Geometry, length: int, found: Reversals) -> str:
    layers = "" if geometry.layer_type == "all" else f" ({geometry.layer_type})"
    said = (
        f"{_what(geometry)} for {length:,} tokens{layers}: at {100 * found.share:.2g}% of the distances, first at "
        f"{found.first:,}, similar tokens get less attention than random ones (Men et al. 2024, arXiv:2405.14591), "
        "which perplexity may not show and passkey does"
    )
    series = _series(geometry)
    if series is None or series[1] != 1 or series[0] >= least_theta(length):
        return said
    three_digits = float(f"{least_theta(length):.3g}")
    return f"{said}; with heads of {_HEAD} it takes about {three_digits:,.0f}"


def _what(geometry: Geometry) -> str:
    """Says which theta is too small, and under which schedule."""
    theta, series = f"theta {geometry.rope.theta:,.0f}", _series(geometry)
    if geometry.frequencies is None:
        return f"{theta} is too small"
    if series is not None and series[1] == 1:
        return f"{geometry.schedule} makes theta {series[0]:,.0f}, too small"
    return f"{theta} is too small, under {geometry.schedule} too,"
