"""Shared parts of the metrics' plots.

Colours are those of Okabe and Ito, which colour-blind readers can distinguish; markers differ for grey print.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ...output.formatting import cut
from ...output.plotting import COLOURS, in_style, plain
from ..facts import TRUNCATION
from ..statistics.intervals import PERCENT
from .base import rests_on
from .stored import Stored

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.container import ErrorbarContainer
    from matplotlib.figure import Figure

LINES = [COLOURS[name] for name in "black blue vermilion green purple sky orange".split()]
Point = tuple[float, float, float | None, float | None]
"""The coordinates x and y of a point, and the bounds of y's interval."""

MARKERS = "os^DvPX<>"

Axis = tuple[str, Iterable[int]]
"""The name of a logarithmic axis of lengths, and its ticks."""

Curves = Mapping[str, Sequence[Point]]

ASIDE = 0.05
"""The horizontal distance of two schedules' points in octaves, if all are at one length."""

Style = dict[str, Any]
"""The look of a line, in matplotlib's words."""


def draw(stored: Stored, curves: Curves, title: str, x: Axis, y: str, log: bool = False) -> Figure:
    """Draws a line per schedule with interval bars, and marks the trained length.

    Args:
        curves: the points of each line by label, in the order of the schedules.
        y: the name of the y axis.
        log: whether the y axis is logarithmic.

    Raises:
        RopescaleError: matplotlib is not installed.
    """
    with in_style(7, 4.4) as figure:
        axes = figure.subplots()
        styles = [style_of(*each) for each in enumerate(curves)]
        fill(axes, {stored.named(label): points for label, points in curves.items()}, x, y, styles, log)
        mark_trained(axes, stored.trained_length)
        about = f"{Path(stored.model['path']).name}, {rests_on(stored)}, bars: {PERCENT}"
        axes.set_title(f"{title}\n{about}", loc="left", fontsize=10)
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(
            handles, [cut(label, 36) for label in labels], loc="outside right upper", fontsize=8, frameon=False
        )
    return figure


def fill(axes: Axes, curves: Curves, x: Axis, y: str, styles: Sequence[Style], log: bool = False) -> None:
    """Draws the lines of :func:`draw`, each in its style, and their axes."""
    _bars(axes, curves, styles)
    if log:
        axes.set_yscale("log")
    means = [point[1] for points in curves.values() for point in points]
    least = min(means)
    most = max(means)
    room = most - least + 1
    low, high = axes.get_ylim()
    if log:
        axes.set_ylim(max(low, least / 4), min(high, most * 4))  # huge intervals are cut off at the edge
        log_ticks(axes)
    else:
        axes.set_ylim(max(low, least - room), min(high, most + room))
    length_axis(axes, x[1], x[0])
    axes.set_ylabel(y)


LENGTH = "context length (tokens)"


def add_curves(axes: Axes, model: str, curves: Curves, y: str) -> None:
    """Adds lines against length to axes that may have those of other results; each label begins with the model."""
    styles = [style_of(*each) for each in enumerate(curves, start=len(axes.containers))]
    _bars(axes, {short(f"{model}, {label}", 60): points for label, points in curves.items()}, styles)
    drawn = [np.asarray(cast("ErrorbarContainer", each).lines[0].get_xdata()) for each in axes.containers]
    length_axis(axes, {int(at) for each in drawn for at in each}, LENGTH)
    axes.set_ylabel(y)
    axes.legend(fontsize=8)


def _bars(axes: Axes, curves: Curves, styles: Sequence[Style]) -> None:
    """Adds a line with interval bars per label; side by side, if all are single points at one length."""
    apart = ASIDE if len({point[0] for points in curves.values() for point in points}) == 1 else 0.0
    for number, (label, points) in enumerate(curves.items()):
        at, mean, low, high = np.array(points, float).T  # NaN for a missing bound
        errors = np.maximum([mean - low, high - mean], 0)
        aside = 2 ** (apart * (number - (len(curves) - 1) / 2))
        axes.errorbar(at * aside, mean, errors, label=label, capsize=3, elinewidth=1, **styles[number])


def style_of(number: int, label: str) -> Style:
    """Returns the colour, marker, dashes and width of a line; the first one is wider than the others.

    Truncation has a grey that no schedule has.
    """
    if label == TRUNCATION:
        return {"color": "#777777", "marker": "d", "linestyle": "-.", "markersize": 6, "linewidth": 1.5}
    marker = MARKERS[number % len(MARKERS)]
    line = ("-", "--", ":")[number // len(LINES) % 3]
    size = {"markersize": 6.5, "linewidth": 2.6} if number == 0 else {"markersize": 4.5, "linewidth": 1.5}
    # so that it remains visible under a line with the same values
    return {"color": LINES[number % len(LINES)], "marker": marker, "linestyle": line, **size}


def length_axis(axes: Axes, ticks: Iterable[int], name: str) -> None:
    """Makes the x axis logarithmic, with the lengths as ticks, and others between them if there are fewer than four."""
    axes.set_xscale("log", base=2)
    shown = _spread(sorted(ticks))
    room = 2 ** (0.5 if len(shown) > 1 else 1)
    low = shown[0] / room
    high = shown[-1] * room
    for steps in ((1,), (1.5,), (1.25, 1.75)):
        if len(shown) < LEAST_TICKS:
            between = [int(step * 2**power) for step in steps for power in range(math.ceil(math.log2(high)) + 1)]
            apart = [each for each in between if all(abs(math.log2(each / tick)) > 0.1 for tick in shown)]
            shown = _spread(sorted({*shown, *(each for each in apart if low <= each <= high)}))
    axes.set_xticks(shown, [tokens(tick) for tick in shown])
    axes.set_xticks([], minor=True)
    axes.set_xlim(low, high)
    axes.set_xlabel(name)


LEAST_TICKS = 4
"""The fewest ticks of an axis from which values can be read."""


def log_ticks(axes: Axes) -> None:
    """Labels a logarithmic y axis with powers of ten, and 3, or 2 and 5, between them; a short one with round steps."""
    from matplotlib.ticker import LogLocator, MaxNLocator

    low, high = axes.get_ylim()
    shown = []
    for locator in (LogLocator(10), LogLocator(10, (1, 3)), LogLocator(10, (1, 2, 5)), MaxNLocator(6)):
        if len(shown) < LEAST_TICKS:
            shown = [float(each) for each in locator.tick_values(low, high) if low <= each <= high]
    shown = shown[:: -(-len(shown) // 9)]
    axes.set_yticks(shown, [f"{each:,.10g}" if each < 1e6 else f"{each:.0e}" for each in shown])
    axes.set_yticks([], minor=True)


def _spread(ticks: list[int]) -> list[int]:
    """Returns ticks at least a fifteenth of the axis apart, so that labels do not overlap."""
    kept = []
    for tick in reversed(ticks):
        if not kept or (kept[-1] / tick) ** 15 >= kept[0] / ticks[0]:
            kept.append(tick)
    return kept[::-1]


def short(label: str, most: int = 36) -> str:
    """Shortens a label to at most ``most`` characters, so that it fits next to a plot."""
    return plain(cut(label, most))


def tokens(length: int) -> str:
    """Formats a length in tokens; multiples of 1024 become ``4k``."""
    return f"{length // 1024}k" if length >= 1024 and length % 1024 == 0 else str(length)


def mark_trained(axes: Axes, length: int | None) -> None:
    """Marks the trained length if it is within the range of the x axis."""
    low, high = axes.get_xlim()
    if length and low < length < high:
        axes.axvline(length, color="#555555", linewidth=1, linestyle=(0, (4, 3)), zorder=0)
        style = {"va": "top", "fontsize": 8, "color": "#555555"}
        where = (length, 1), (4, -4), ("data", "axes fraction"), "offset points"
        axes.annotate(f"trained at {tokens(length)}", *where, **style)
