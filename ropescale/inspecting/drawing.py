"""Plots the rotary geometry: wavelength and turns per pair, before and after schedules."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from ..output.formatting import abbreviated
from ..output.plotting import COLOURS, in_style, save
from ..request import Request, RequestOptions, refuse_unknown
from ..tables import configuration_of
from .geometry import Geometry, Pair
from .inspection import compare, geometries_of, inspect, names_in, requests_of, side_by_side

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def plot(
    model: Any, schedule: object = None, path: str | Path | None = None, **options: Unpack[RequestOptions]
) -> Figure:
    """Plots a model's wavelength and turns per pair, before and after one or several schedules.

    Args:
        model: a checkpoint's folder or Hub id (no weights are read), a configuration, or a loaded model.
        schedule: a schedule or a spec such as ``"yarn:factor=8"``, or a list of them, drawn over each other. Default:
            the model's current scaling.
        path: also write the figure to this file (png, svg or pdf).
        options: the fields of :class:`ropescale.request.Request`; each of several schedules takes the fields that it
            has.

    Returns:
        A matplotlib ``Figure`` without a window; a notebook displays it. See :func:`draw_geometry` and
        :func:`draw_comparison`.

    Raises:
        RopescaleError: matplotlib is not installed, or the model or the schedule cannot be read.
    """
    refuse_unknown("ropescale.plot", options, RequestOptions.__annotations__)
    is_checkpoint = isinstance(model, (str, Path))
    if isinstance(schedule, (list, tuple)) and len(schedule) == 1:
        [schedule] = schedule
    if not isinstance(schedule, (list, tuple)):
        if is_checkpoint:
            geometries = inspect(str(model), schedule, **options).geometries
        else:
            config = configuration_of(model, "as-is" if schedule is None else schedule, options.get("on_top", False))
            geometries = geometries_of(config, Request.of(schedule, **options))
        figure = draw_geometry(geometries)
    elif is_checkpoint:
        figure = draw_comparison(compare(str(model), schedule, **options).layers)
    else:
        shares = requests_of(schedule, Request.of(None, **options))
        made = {
            name: geometries_of(configuration_of(model, share.spec, share.on_top), share)
            for name, share in shares.items()
        }
        figure = draw_comparison(side_by_side(made, names_in(shares)))
    if path is not None:
        save(figure, path)
    return figure


def draw_geometry(geometries: Sequence[Geometry]) -> Figure:
    """Plots wavelength and turns per pair, before and after a schedule: two panels per layer type.

    Left: tokens per full turn, with lines for the trained length (or the attention window) and the target length. A
    pair above the trained length's line never completed a turn in training. Right: turns inside the trained length
    before the schedule, inside the target length after it, and inside the target length without a schedule.
    """
    with in_style(9.6, 3.9 * len(geometries)) as figure:
        panels = figure.subplots(len(geometries), 2, squeeze=False)
        for (left, right), geometry in zip(panels, geometries):
            _wavelengths(left, [geometry], lambda _: AFTER)
            left.legend(loc="lower right")
            _turns_panel(right, geometry)
    return figure


def draw_comparison(layers: Mapping[str, Sequence[Geometry]]) -> Figure:
    """Plots several schedules over each other: three panels per layer type, and one legend.

    Left and middle as :func:`draw_geometry`. Right: the slowdown of every pair, ``inv_freq / new_inv_freq``; stopped
    pairs are left out.

    Args:
        layers: the geometries under the schedules by layer type, as in :attr:`Inspections.layers`.
    """
    with in_style(13.2, 3.9 * len(layers) + 0.5) as figure:
        panels = figure.subplots(len(layers), 3, squeeze=False)
        named = list(dict.fromkeys(each.label for row in layers.values() for each in row if each.schedule))
        style = partial(_style, named)
        for (left, middle, right), geometries in zip(panels, layers.values()):
            _wavelengths(left, geometries, style)
            _compared_turns(middle, geometries, style)
            _title(right, geometries[0], "Slowdown of each pair", "times slower")
            for geometry in _changed(geometries):
                _curve(right, geometry.pairs(), "divisor", label=geometry.label, **style(geometry))
            _level(right, 1, "" if _changed(geometries) else "unchanged layers", "--")
            _shade_unturned(right, geometries[0])
            _plain_ticks(right)
        shown = {label: line for axes in figure.axes for line, label in zip(*axes.get_legend_handles_labels())}
        order = [label for label in ["as trained", *named, *shown] if label in shown]
        labels = list(dict.fromkeys(order))
        figure.legend(
            [shown[label] for label in labels],
            abbreviated([str(label) for label in labels], 60),
            loc="outside lower center",
            ncols=min(4, len(labels)),
        )
    return figure


Style = Callable[[Geometry], dict[str, Any]]
"""Returns the style of a schedule's curves."""


def _wavelengths(axes: Axes, geometries: Sequence[Geometry], style: Style) -> None:
    first = geometries[0]
    _title(axes, first, "Wavelength per pair", "tokens per full turn")
    _curve(axes, first.pairs(), "wavelength", label="as trained", **BEFORE)
    for geometry in _changed(geometries):
        _curve(axes, geometry.pairs(), "new_wavelength", label=geometry.label, **style(geometry))
    # the trained length (or the attention window), and every target length
    window, trained = first.window, first.rope.original_length
    if window and window < trained:
        _level(axes, window, f"window {window:,}", "--")
    else:
        _level(axes, trained, f"trained length {trained:,}", "--", below=True)  # the target's label is above its line
    targets = sorted({each.target_length for each in geometries if each.target_length} - {trained, window})
    name = f"target length{'s' if len(targets) > 1 else ''} {', '.join(f'{each:,}' for each in targets)}"
    for target in targets:
        _level(axes, target, name if target == targets[-1] else "", ":")
    _shade_unturned(axes, first)


def _compared_turns(axes: Axes, geometries: Sequence[Geometry], style: Style) -> None:
    first = geometries[0]
    trained = first.seen(first.rope.original_length)
    _title(axes, first, "Turns per pair within its length", "full turns")
    _curve(axes, first.pairs(), "turns", label="as trained", **BEFORE)
    # The lengths that these layers attend to under the schedules, if they differ from the trained length.
    targets = sorted({each.seen(each.target_length) for each in geometries if each.target_length} - {trained})
    label = f"unchanged, in {' or '.join(f'{each:,}' for each in targets)} tokens"
    for target in targets:
        _undone_curve(axes, first, target, label=label, **_UNDONE)
    for geometry in _changed(geometries):
        _curve(axes, geometry.pairs(), "new_turns", label=geometry.label, **style(geometry))
    _level(axes, 1, "one full turn", "--")
    _shade_unturned(axes, first)


def _plain_ticks(axes: Axes) -> None:
    """Labels a short logarithmic axis with plain numbers, because it may contain no power of ten."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

    low, high = axes.get_ylim()
    if high < _SHORT * low:
        axes.yaxis.set_major_locator(MaxNLocator(6))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.6g}"))


_SHORT = 10
"""The smallest ratio of a logarithmic axis's ends for labels at powers of ten."""


def _changed(geometries: Sequence[Geometry]) -> list[Geometry]:
    return [geometry for geometry in geometries if geometry.schedule]


def _style(named: Sequence[str | None], geometry: Geometry) -> dict[str, Any]:
    """Returns the colour, marker and dashes of a schedule, shared by all panels.

    Earlier curves are wider, so that they stay visible under later ones that coincide.
    """
    place = named.index(geometry.label)
    turn, number = divmod(place, len(_HUES))
    width = 1 - place / max(1, len(named) - 1)
    return {
        "color": _HUES[number],
        "marker": _SHAPES[(turn + number) % len(_SHAPES)],
        "markersize": 2.6 + 3.4 * width,
        "markevery": max(1, geometry.rope.pairs // 21),
        "linewidth": 0.9 + 2.1 * width,
        "linestyle": _DASHES[turn % len(_DASHES)],
    }


_HUES = [COLOURS[name] for name in ("vermilion", "green", "purple", "orange", "black", "sky")]
_UNDONE: dict[str, Any] = {"color": "#888888", "linestyle": (0, (4, 2)), "linewidth": 1.4}
_SHAPES = ("s", "^", "D", "v", "P", "X")
_DASHES = ("-", (0, (3, 1.5)), (0, (1, 1)))


# Open circles under small squares: both stay visible if the two curves coincide.
BEFORE: dict[str, Any] = {
    "color": COLOURS["blue"], "marker": "o", "markersize": 5.5, "markerfacecolor": "none", "linewidth": 1.2
}  # fmt: skip
AFTER: dict[str, Any] = {"color": COLOURS["vermilion"], "marker": "s", "markersize": 2.6, "linewidth": 1.2}
UNDONE: dict[str, Any] = {"color": COLOURS["sky"], "linestyle": (0, (4, 2)), "linewidth": 1.4}


def _turns_panel(axes: Axes, geometry: Geometry) -> None:
    pairs, trained = geometry.pairs(), geometry.seen(geometry.rope.original_length)
    target = geometry.seen(geometry.target_length) if geometry.target_length else None
    _title(axes, geometry, "Turns per pair", "full turns")
    _curve(axes, pairs, "turns", label=f"as trained, in {trained:,} tokens", **BEFORE)
    if geometry.schedule and target:
        if target != trained:
            _undone_curve(axes, geometry, target, label=f"unchanged, in {target:,}", **UNDONE)
        _curve(axes, pairs, "new_turns", label=f"{geometry.label}, in {target:,}", **AFTER)
    _level(axes, 1, "one full turn", "--")
    _shade_unturned(axes, geometry)
    axes.legend(loc="lower left")


def _title(axes: Axes, geometry: Geometry, title: str, quantity: str) -> None:
    from matplotlib.ticker import MaxNLocator

    layers = "" if geometry.layer_type == "all" else f" ({geometry.layer_type})"
    axes.set_title(f"{title}{layers}", fontsize=10, loc="left")
    axes.set_xlabel("pair (0 turns fastest)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylabel(quantity)
    axes.set_yscale("log")
    axes.set_xlim(-0.5, geometry.rope.pairs - 0.5)


def _curve(axes: Axes, pairs: Sequence[Pair], field: str, **style: Any) -> None:
    """Plots a line through the pairs; a log axis leaves out pairs that never turn."""
    axes.plot([pair.pair for pair in pairs], [_positive(getattr(pair, field)) for pair in pairs], **style)


def _undone_curve(axes: Axes, geometry: Geometry, target: int, **style: Any) -> None:
    """Plots the turns of the unchanged pairs inside a target length."""
    trained = geometry.seen(geometry.rope.original_length)
    turns = [_positive(pair.turns * target / trained) for pair in geometry.pairs()]
    axes.plot(range(len(turns)), turns, **style)


def _positive(value: float) -> float:
    return value if math.isfinite(value) and value > 0 else math.nan


def _level(axes: Axes, height: float, text: str, style: str, below: bool = False) -> None:
    """Plots a horizontal line with its label on it, or below it."""
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
