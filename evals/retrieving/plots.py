"""Draws a retrieval run: a heat map of accuracy and one of the answer's NLL for each schedule."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from ...output.plotting import in_style
from ..metrics.drawing import short, tokens

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = "cividis"
"""A colour map for colour-blind readers, with evenly rising lightness for print in grey (Nuñez et al. 2018)."""


def heat_maps(
    cells: Mapping[tuple[str, str, int], tuple[float, float]], name: Callable[[str], str], trained: int, title: str
) -> Figure:
    """Draws accuracy and the answer's NLL by length and depth or task, with a row of two panels per schedule.

    The NLL shows differences even if accuracy is 0 or 1. All schedules share one scale.

    Args:
        cells: accuracy and NLL by schedule, depth or task, and length.
        name: returns the displayed name of a schedule's label.
        trained: the trained length, which a dashed line between the lengths marks; 0 if unknown.

    Raises:
        RopescaleError: matplotlib is not installed.
    """
    schedules, parts, lengths = ([*dict.fromkeys(keys)] for keys in zip(*cells))
    losses = [loss for _, loss in cells.values()]
    width = max(2.2, 0.5 + 0.52 * len(lengths))
    height = max(1.9, 0.9 + 0.27 * len(parts))
    inside = sum(length <= trained for length in lengths)
    is_marked = 0 < inside < len(lengths)
    missing = (math.nan, math.nan)
    with in_style(2.9 + 2 * width, 0.8 + height * len(schedules), **{"axes.grid": False}) as figure:
        panels = figure.subplots(len(schedules), 2, squeeze=False)
        kinds = (
            ("accuracy", COLOURS, (0.0, 1.0), "{:.2f}"),
            ("answer NLL (nats)", f"{COLOURS}_r", (min(losses), max(losses)), "{:.1f}"),
        )
        for column, (label, colours, scale, form) in enumerate(kinds):
            for axes, schedule in zip(panels[:, column], schedules):
                rows = [[cells.get((schedule, part, length), missing) for length in lengths] for part in parts]
                _heat_map(axes, np.array(rows)[:, :, column], colours, scale, form)
                axes.set_xticks(range(len(lengths)), [tokens(length) for length in lengths], fontsize=8)
                axes.set_yticks(range(len(parts)), [short(part, 20) for part in parts], fontsize=8)
                axes.set_title(short(name(schedule), 30), loc="left", fontsize=9)
                if is_marked:  # visible on every colour
                    axes.axvline(inside - 0.5, color="white", linewidth=3.6)
                    axes.axvline(inside - 0.5, color="black", linewidth=1.4, linestyle=(0, (4, 2)))
            panels[-1, column].set_xlabel("length (tokens)", fontsize=8)
            figure.colorbar(panels[0, column].images[0], ax=panels[:, column], label=label, aspect=12 * len(schedules))
        marked = f"; dashed line: trained at {tokens(trained)}" if is_marked else ""
        figure.suptitle(f"{title}{marked}", x=0.01, ha="left", fontsize=10)
    return figure


def _heat_map(axes: Axes, values: np.ndarray, colours: str, scale: tuple[float, float], form: str) -> None:
    """Draws cells, [rows, columns], with their numbers. Missing cells of an interrupted run (NaN) have no number."""
    image = axes.imshow(values, cmap=colours, vmin=scale[0], vmax=scale[1], aspect="auto")
    for (y, x), value in np.ndenumerate(values):
        if not np.isnan(value):
            red, green, blue, _ = image.to_rgba(np.array(value))
            colour = "black" if 0.3 * red + 0.6 * green + 0.1 * blue > 0.5 else "white"
            axes.text(x, y, form.format(value), ha="center", va="center", fontsize=7, color=colour)
