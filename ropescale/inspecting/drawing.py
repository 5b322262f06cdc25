"""Plots the rotary geometry: wavelength and slowdown per pair, before and after schedules."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from ..output.formatting import cut
from ..output.plotting import COLOURS, in_style, save
from ..request import RequestOptions, check_keywords
from .geometry import Geometry, Pair
from .inspection import compare, inspect

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def plot(
    model: object, schedule: object = None, path: str | Path | None = None, **options: Unpack[RequestOptions]
) -> Figure:
    """Plots a model's wavelength per pair, before and after one or several schedules, and their slowdown.

    Args:
        model: a checkpoint's folder or Hub id (no weights are read), a configuration, or a loaded model.
        schedule: a schedule or a spec such as ``"yarn:factor=8"``, or a list of them, drawn over each other. Default:
            the model's current scaling.
        path: also write the figure to this file (png, svg or pdf).
        options: the fields of :class:`ropescale.request.Request`; each schedule in a list takes only the
            fields that it has.

    Returns:
        A matplotlib ``Figure`` without a window; a notebook displays it. See :func:`draw`.

    Raises:
        RopescaleError: matplotlib is not installed, the model or the schedule cannot be read, or the file cannot be
            written.
    """
    check_keywords("plot", options)
    several = isinstance(schedule, (list, tuple))
    inspection = compare(model, schedule, **options) if several else inspect(model, schedule, **options)
    figure = draw(inspection.layers)
    if path is not None:
        save(figure, path)
    return figure


def draw(layers: Mapping[str, Sequence[Geometry]]) -> Figure:
    """Plots the pairs of each layer type before and after schedules: up to two panels, and one legend for all.

    The left panel shows tokens per full turn, with lines for the trained length (or the attention window) and the
    target lengths. A pair above the line of the trained length never completed a turn in training. The right panel
    shows the slowdown, ``inv_freq / new_inv_freq``, if there is a schedule. Pairs that never turn are left out.

    Args:
        layers: the geometries under the schedules by layer type, as in :attr:`Inspections.layers`.
    """
    named = list(dict.fromkeys(each.label for row in layers.values() for each in row if each.schedule))
    with in_style(9.6 if named else 4.8, 3.9 * len(layers) + 0.5) as figure:
        panels = figure.subplots(len(layers), 2 if named else 1, squeeze=False)
        for (left, *slowdown), geometries in zip(panels, layers.values()):
            changed = [geometry for geometry in geometries if geometry.schedule]
            _panel(left, geometries[0], "Wavelength per pair", "tokens per full turn")
            _curve(left, geometries[0].pairs(), "wavelength", label="as trained", **_BEFORE)
            for right in slowdown:
                _panel(right, geometries[0], "Slowdown of each pair", "times slower")
            for geometry in changed:
                for axes, field in zip((left, *slowdown), ("new_wavelength", "divisor")):
                    _curve(axes, geometry.pairs(), field, label=geometry.label, **_style(named, geometry))
            _lengths(left, geometries)
            _shade_unturned(left, geometries[0])
            for right in slowdown:
                _level(right, 1, "" if changed else "unchanged layers", "--")
                _shade_unturned(right, geometries[0])
                _plain_ticks(right)
        shown = {str(label): line for axes in figure.axes for line, label in zip(*axes.get_legend_handles_labels())}
        labels = [label for label in ["as trained", *map(str, named)] if label in shown]
        figure.legend(
            [shown[label] for label in labels],
            [cut(label, 60) for label in labels],
            loc="outside lower center",
            ncols=min(4, len(labels)),
        )
    return figure


def _panel(axes: Axes, geometry: Geometry, title: str, quantity: str) -> None:
    """Labels the axes, with whole numbers for the pairs."""
    from matplotlib.ticker import MaxNLocator

    layers = "" if geometry.layer_type == "all" else f" ({geometry.layer_type})"
    axes.set_title(f"{title}{layers}", fontsize=10, loc="left")
    axes.set_xlabel("pair (0 turns fastest)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylabel(quantity)
    axes.set_yscale("log")
    axes.set_xlim(-0.5, geometry.rope.pairs - 0.5)


def _curve(axes: Axes, pairs: Sequence[Pair], field: str, **style: Any) -> None:
    """Plots a line through the pairs, except those that never turn, which a logarithmic axis cannot show."""
    values = [getattr(pair, field) for pair in pairs]
    shown = [value if math.isfinite(value) and value > 0 else math.nan for value in values]
    axes.plot(range(len(pairs)), shown, **style)


def _lengths(axes: Axes, geometries: Sequence[Geometry]) -> None:
    """Marks the trained length (or the attention window), and every target length."""
    window = geometries[0].window
    trained = geometries[0].rope.original_length
    if window and window < trained:
        _level(axes, window, f"window {window:,}", "--")
    else:
        _level(axes, trained, f"trained length {trained:,}", "--", below=True)  # the target's label is above its line
    for target in sorted({each.target_length for each in geometries if each.target_length} - {trained, window}):
        _level(axes, target, f"target length {target:,}", ":")


def _style(named: Sequence[str | None], geometry: Geometry) -> dict[str, Any]:
    """Returns the colour and width of a schedule, shared by all panels; earlier curves are wider, so that they stay
    visible under later ones that coincide."""
    place = named.index(geometry.label)
    later = len(named) - 1 - place
    return {"color": _HUES[place % len(_HUES)], "linewidth": 0.9 + 2.1 * later / len(named)}


_HUES = [COLOURS[name] for name in "vermilion green purple orange black sky".split()]
_BEFORE: dict[str, Any] = {"color": COLOURS["blue"], "linewidth": 3.6, "alpha": 0.5}


def _level(axes: Axes, height: float, text: str, style: str, below: bool = False) -> None:
    """Plots a horizontal line with its label above or below."""
    axes.axhline(height, color=COLOURS["black"], linestyle=style, linewidth=1)
    place: dict[str, Any] = {"xytext": (0, -3 if below else 2), "va": "top" if below else "baseline"}
    axes.annotate(
        text, (0.01, height), xycoords=("axes fraction", "data"), textcoords="offset points", fontsize=8, **place
    )


def _shade_unturned(axes: Axes, geometry: Geometry) -> None:
    """Shades the pairs that never completed a turn in training."""
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * (high / low) ** 0.12)  # room for the label above the highest point
    unturned = geometry.unturned()
    if unturned:
        axes.axvspan(unturned[0] - 0.5, geometry.rope.pairs - 0.5, color="#000000", alpha=0.06, linewidth=0)
        axes.annotate(
            "no full turn\nin training", (unturned[0] - 0.3, 0.98), xycoords=("data", "axes fraction"),
            va="top", fontsize=8, color="#444444",
        )  # fmt: skip


def _plain_ticks(axes: Axes) -> None:
    """Labels a short logarithmic axis with plain numbers, because it may contain no power of ten."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

    low, high = axes.get_ylim()
    if high < 10 * low:
        axes.yaxis.set_major_locator(MaxNLocator(6))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.6g}"))
