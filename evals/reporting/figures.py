"""The figures of the page, as SVG in the page's colours, with a group per series that its switches hide."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...output.formatting import Grid
from ...output.plotting import COLOURS, in_style
from ..facts import TRUNCATION
from ..metrics import against_truncation, by_position, drawing
from ..metrics.cells import interval_cell, table
from ..metrics.drawing import Axis, Point
from ..metrics.paired import difference
from ..metrics.perplexity import truncated
from ..results.result import Result
from ..statistics.intervals import Estimate
from .runs import StoredRun, measured

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class Series:
    """A schedule of a run, or truncation, with its number, which is that of its colour and marker."""

    number: int
    run: str
    result: Result
    schedule: str
    label: str


def series_of(runs: Sequence[StoredRun]) -> list[Series]:
    """Returns the schedules of all runs, followed by each run's truncation."""
    known = measured(runs)
    owners = [(name, result, schedule) for name, result in known for schedule in result.schedules]
    owners += [(name, result, TRUNCATION) for name, result in known if result.truncated_losses]
    series = []
    for number, (name, result, schedule) in enumerate(owners):
        label = result.named(schedule)
        series.append(Series(number, name, result, schedule, f"{name}: {label}" if len(known) > 1 else label))
    return series


Lines = Mapping[Series, Sequence[Point]]
Changes = Mapping[Series, Mapping[int, Estimate]]


def changes_from(base: Series, series: Sequence[Series]) -> Changes:
    """Returns the change of every other series from one, at every length of both, if they scored the same tokens.

    Changes from truncation are those of its own run, on the tokens past the trained length.
    """
    found: dict[Series, dict[int, Estimate]] = {}
    if base.schedule == TRUNCATION:
        own = {each.schedule: each for each in series if each.result is base.result}
        for row in against_truncation.METRIC.rows(base.result):
            found.setdefault(own[row.schedule], {})[row.length] = row.change
    for each in series:
        for length in each.result.lengths:
            change = difference(each.result, each.schedule, base.result, base.schedule, length)
            if change and each is not base:
                found.setdefault(each, {})[length] = change
    return found


# --- Figures


QUANTITIES = {
    "ppl": "perplexity",
    "nll": "loss (nats per token)",
    "tail_nll": "loss over the second half of the positions",
    "bits_per_byte": "bits per byte",
}
"""The fields of a row of perplexity that the page shows against length, by name."""


def against_length(series: Sequence[Series], key: str) -> tuple[str, Grid] | None:
    """Returns the figure and the table of one of :data:`QUANTITIES`; None if no run has it.

    Perplexity and the loss of the second half have intervals.
    """
    lines = {}
    cells = []
    stem = key.removesuffix("_nll")
    for each in series:
        for row in [*each.result.rows, *truncated(each.result)]:
            value = getattr(row, key, None)
            low = getattr(row, f"{stem}_low", None)
            high = getattr(row, f"{stem}_high", None)
            if row.schedule != each.schedule or value is None:
                continue
            lines.setdefault(each, []).append((row.length, value, low, high))
            cells.append((each.label, row.length, interval_cell(value, low, high, row.interval)))
    if not lines:
        return None
    figure = _by_length(f"curve-{key}", lines, QUANTITIES[key], log=key == "ppl")
    return figure, table(QUANTITIES[key], cells)


def changes(name: str, found: Changes) -> str:
    """Returns a figure of changes against length, in which gains and losses have their own colours; "" without any."""
    points = {}
    for each, own in found.items():
        points[each] = [(length, change.mean, change.low, change.high) for length, change in own.items()]
    return _by_length(name, points, "change (nats per token)", sides=True) if points else ""


def positions(series: Sequence[Series]) -> str:
    """Returns the figure of the loss by position; "" if no token counts."""
    bins = {}
    for each in series:
        own = by_position.bins_of(each.result)[each.schedule]
        if own:
            bins[each] = own
    if not bins:
        return ""
    lines = {each: by_position.points_of(own) for each, own in bins.items()}
    return _by_length("position", lines, "loss (nats per token)", by_position.axis_of(bins.values()))


def _by_length(name: str, lines: Lines, y: str, x: Axis | None = None, log: bool = False, sides: bool = False) -> str:
    with in_style(6, 3.9, **{"font.size": 10}) as figure:
        axes = figure.subplots()
        lengths = sorted({int(at) for points in lines.values() for at, *_ in points})
        curves = {each.label: points for each, points in lines.items()}
        styles = [drawing.style_of(each.number, each.schedule) for each in lines]
        drawing.fill(axes, curves, x or (drawing.LENGTH, lengths), y, styles, log)
        for bars, each in zip(axes.containers, lines):
            for part in bars.get_children():
                part.set_gid(f"series-{each.number}")
        if sides:
            _colour_sides(axes)
        for length in {each.result.trained_length for each in lines}:
            drawing.mark_trained(axes, length)
    return svg(figure, name)


def _colour_sides(axes: Axes) -> None:
    """Marks zero, and colours the better side below it and the worse side above it."""
    low, high = axes.get_ylim()
    room = 0.1 * (high - low)
    axes.set_ylim(min(low, -room), max(high, room))
    better, worse = axes.get_ylim()
    for end, colour, word, side in ((better, "green", "better", "bottom"), (worse, "vermilion", "worse", "top")):
        axes.axhspan(0, end, color=COLOURS[colour], alpha=0.12, linewidth=0, zorder=0)
        axes.annotate(word, (1, end), (-4, 0), ("axes fraction", "data"), "offset points", ha="right", va=side)


_REWRITTEN = {
    r"\A.*?(?=<svg)": "",
    r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->": "",
    r' (?:width|height)="[\d.]+pt"': "",
    r'font-family: [^;"]*(?:; )?': "",
    r' id="series-(\d+)"': r' data-series="\1"',
    r' id="[a-z]+[a-z0-9.]*_\d+"': "",
    "#000000": "currentColor",
    "#dddddd": "var(--line)",
    "#555555": "var(--quiet)",
}
"""What an SVG element has instead in the page, whose colours and fonts it takes."""


def svg(figure: Figure, name: str) -> str:
    """Returns a figure as an SVG element, with ids that begin with ``name``."""
    from matplotlib import rc_context

    file = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    text = file.getvalue()
    for pattern, replacement in _REWRITTEN.items():
        text = re.sub(pattern, replacement, text, flags=re.DOTALL)
    return re.sub(r'( id="|url\(#|href="#)', rf"\1{name}-", text)
