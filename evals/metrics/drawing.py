"""Shared parts of the metrics' plots.

Colours are those of Okabe and Ito, which colour-blind readers can distinguish; markers differ for grey print.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ...output.formatting import abbreviated
from ...output.plotting import COLOURS, in_style, plain
from ..statistics.intervals import PERCENT
from .base import rests_on
from .stored import Stored

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.container import ErrorbarContainer
    from matplotlib.figure import Figure

LINES = [COLOURS[name] for name in ("black", "blue", "vermilion", "green", "purple", "sky", "orange")]
Point = tuple[float, float, float | None, float | None]
"""The coordinates x and y of a point, and the bounds of y's interval."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")

ASIDE = 0.05
"""The horizontal distance of two schedules' points at one length, in octaves."""

Axis = tuple[str, Iterable[int]]
"""The name of a logarithmic axis of lengths, and its ticks."""

Curves = Mapping[str, Sequence[Point]]


def draw(stored: Stored, curves: Curves, title: str, x: Axis, y: str, log: bool = False) -> Figure:
    """Draws a line per schedule with interval bars, shifted so that they do not overlap, and marks the trained length.

    Args:
        curves: the points of each line by label, in the order of the schedules.
        y: the name of the y axis.
        log: whether the y axis is logarithmic.

    Raises:
        RopescaleError: matplotlib is not installed.
    """
    from matplotlib.ticker import LogFormatter

    with in_style(7, 4.4) as figure:
        axes = figure.subplots()
        _bars(axes, {stored.named(label): points for label, points in curves.items()}, ASIDE)
        if log:
            axes.set_yscale("log")
        means, (low, high) = [point[1] for points in curves.values() for point in points], axes.get_ylim()
        room = max(means) - min(means) + 1
        least, most = (min(means) / 4, max(means) * 4) if log else (min(means) - room, max(means) + room)
        axes.set_ylim(max(low, least), min(high, most))  # huge intervals are cut off at the edge
        length_axis(axes, x[1], x[0])
        axes.set_ylabel(y)
        if log:  # 20 instead of 2 times ten to the power of one
            axes.yaxis.set_major_formatter(LogFormatter())
            axes.yaxis.set_minor_formatter(LogFormatter(labelOnlyBase=False, minor_thresholds=(2, 0.5)))
        _mark_trained(axes, stored.trained_length)
        about = f"{Path(stored.model['path']).name}, {rests_on(stored)}, bars: {PERCENT}"
        axes.set_title(f"{title}\n{about}", loc="left", fontsize=10)
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, abbreviated(labels, 36), loc="outside right upper", fontsize=8, frameon=False)
    return figure


LENGTH = "context length (tokens)"


def add_curves(axes: Axes, model: str, curves: Curves, y: str) -> None:
    """Adds lines against length to axes that may have those of other results; each label begins with the model."""
    _bars(axes, {short(f"{model}, {label}", 60): points for label, points in curves.items()}, 0)
    drawn = [np.asarray(cast("ErrorbarContainer", each).lines[0].get_xdata()) for each in axes.containers]
    length_axis(axes, {int(at) for each in drawn for at in each}, LENGTH)
    axes.set_ylabel(y)
    axes.legend(fontsize=8)


def _bars(axes: Axes, curves: Curves, apart: float) -> None:
    """Adds a line with interval bars per label, each as many octaves from the next one."""
    first = len(axes.containers)
    for number, (label, points) in enumerate(curves.items()):
        at, mean, low, high = np.array(points, float).T  # NaN for a missing bound
        aside = 2 ** (apart * (number - (len(curves) - 1) / 2))
        errors = np.maximum([mean - low, high - mean], 0)
        axes.errorbar(at * aside, mean, errors, label=label, capsize=3, elinewidth=1, **_style(first + number))


def _style(number: int) -> dict[str, Any]:
    marker = MARKERS[number % len(MARKERS)]
    line = ("-", "--", ":")[number // len(LINES) % 3]
    size = {"markersize": 6.5, "linewidth": 2.6} if number == 0 else {"markersize": 4.5, "linewidth": 1.5}
    # The first line is wider, so that it remains visible under a line with the same values.
    return {"color": LINES[number % len(LINES)], "marker": marker, "linestyle": line, **size}


def length_axis(axes: Axes, ticks: Iterable[int], name: str) -> None:
    """Makes the x axis logarithmic, with the lengths as ticks."""
    from matplotlib.ticker import FixedLocator, NullLocator

    axes.set_xscale("log", base=2)
    shown = _spread(sorted(ticks))
    axes.xaxis.set_major_locator(FixedLocator(shown))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticklabels([tokens(tick) for tick in shown])
    axes.set_xlim(shown[0] / 2**0.5, shown[-1] * 2**0.5)
    axes.set_xlabel(name)


def _spread(ticks: list[int]) -> list[int]:
    """Returns ticks at least a fifteenth of the axis apart, so that labels do not overlap."""
    kept: list[int] = []
    for tick in reversed(ticks):
        if not kept or (kept[-1] / tick) ** 15 >= kept[0] / ticks[0]:
            kept.append(tick)
    return kept[::-1]


def short(label: str, most: int = 36) -> str:
    """Shortens a label to at most ``most`` characters, so that it fits next to a plot."""
    return plain(label if len(label) <= most else f"{label[: most - 1]}…")


def tokens(length: int) -> str:
    """Formats a length in tokens; multiples of 1024 become ``4k``."""
    return f"{length // 1024}k" if length >= 1024 and length % 1024 == 0 else str(length)


def _mark_trained(axes: Axes, length: int | None) -> None:
    """Marks the trained length if it is within the range of the x axis."""
    low, high = axes.get_xlim()
    if length and low < length < high:
        axes.axvline(length, color="#555555", linewidth=1, linestyle=(0, (4, 3)), zorder=0)
        text, place, style = (
            f"trained at {tokens(length)}",
            (length, 1),
            {"va": "top", "fontsize": 8, "color": "#555555"},
        )
        axes.annotate(text, place, (4, -4), ("data", "axes fraction"), "offset points", **style)
