"""Draws a retrieval run: one heat map per schedule, side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...output.plotting import in_style
from ..metrics.drawing import short, tokens
from .answers import AccuracyRow, StoredAnswers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

ACROSS = 4
"""The most schedules in one row of heat maps."""

COLOURS = "cividis"
"""A colour map for colour-blind readers, with evenly rising lightness for print in grey (Nuñez et al. 2018)."""


Part = float | str | None
"""A depth, a task, or None for all questions of a run of one task."""

Cells = dict[tuple[int, Part], AccuracyRow]


@dataclass(frozen=True)
class MapKind:
    """The value that heat maps show, its format and its scale; ``runs_backwards`` if low values are good."""

    value: Callable[[AccuracyRow], float]
    form: str
    low: float
    high: float
    label: str
    runs_backwards: bool = False


def draw(result: StoredAnswers, every: Sequence[AccuracyRow]) -> Figure:
    """Draws accuracy above and the answer's NLL below, by length and depth or task, with the trained length marked.

    The NLL shows differences where accuracy is all or nothing. All schedules share one scale.

    Args:
        every: the rows of accuracy.

    Raises:
        RopescaleError: matplotlib is not installed.
    """
    across, parts = min(ACROSS, len(result.schedules)), _parts(result)
    bands = -(-len(result.schedules) // across)
    width, height = max(2.2, 0.5 + 0.52 * len(result.lengths)), max(1.9, 0.9 + 0.27 * len(parts))
    cells: dict[str, Cells] = {schedule: {} for schedule in result.schedules}
    for row in every:
        part = row.depth if row.task is None else row.task
        if part in parts:
            cells[row.schedule][row.length, part] = row
    losses = [row.answer_nll for own in cells.values() for row in own.values()]
    low, high = min(losses), max(losses)
    nll = MapKind(
        value=lambda row: row.answer_nll,
        form="{:.1f}" if high < 99.95 else "{:.0f}",
        low=low,
        high=max(high, low + 1e-6),
        label="answer NLL (nats)" if result.chance is None else f"answer NLL (nats), chance {result.chance:.1f}",
        runs_backwards=True,
    )
    score = MapKind(lambda row: row.accuracy, "{:.2f}", 0.0, 1.0, "score" if result.chance is None else "accuracy")
    with in_style(1.5 + width * across, 0.6 + 2 * bands * height, **{"axes.grid": False}) as figure:
        panels = figure.subplots(2 * bands, across, squeeze=False)
        for number, kind in enumerate((score, nll)):
            grid = panels[number * bands : (number + 1) * bands]
            images = [_heat_map(axes, result, *own, kind) for axes, own in zip(grid.flat, cells.items())]
            for axes in grid.flat[len(images) :]:
                axes.set_visible(False)
            bar = figure.colorbar(images[0], ax=grid, label=kind.label, shrink=0.9, aspect=12 * bands)
            if kind is nll and result.chance is not None and kind.low < result.chance < kind.high:
                bar.ax.axhline(result.chance, color="white", linewidth=3.6)
                bar.ax.axhline(result.chance, color="black", linewidth=1.4)
        figure.suptitle(_title(result), x=0.01, ha="left", fontsize=10)
    return figure


def _parts(result: StoredAnswers) -> list[Part]:
    """Returns the lines of a map: depths, tasks, or one line."""
    return [*(result.tasks or result.depths or [None])]


def _heat_map(axes: Axes, result: StoredAnswers, schedule: str, cells: Cells, kind: MapKind) -> AxesImage:
    parts = _parts(result)
    rows = [[cells.get((length, part)) for length in result.lengths] for part in parts]
    values = [[float("nan") if row is None else kind.value(row) for row in line] for line in rows]
    colours = f"{COLOURS}_r" if kind.runs_backwards else COLOURS
    image = axes.imshow(values, cmap=colours, vmin=kind.low, vmax=kind.high, aspect="auto")
    for y, line in enumerate(values):
        for x, value in enumerate(line):
            if value == value:  # an interrupted run has gaps
                share = (value - kind.low) / (kind.high - kind.low)
                is_light = share < 0.5 if kind.runs_backwards else share > 0.5  # on cividis, above the middle
                colour = "black" if is_light else "white"
                axes.text(x, y, kind.form.format(value), ha="center", va="center", fontsize=7, color=colour)
    ticks = [f"{100 * part:.3g}%" if isinstance(part, float) else short(str(part or "all"), 20) for part in parts]
    axes.set_xticks(range(len(result.lengths)), [tokens(n) for n in result.lengths], fontsize=8)
    axes.set_yticks(range(len(parts)), ticks, fontsize=8)
    axes.set_xlabel("length (tokens)", fontsize=8)
    axes.set_ylabel("depth" if result.depths else "task", fontsize=8)
    axes.set_title(short(result.named(schedule), 30), loc="left", fontsize=9)
    if inside := _inside(result):  # visible on every colour
        axes.axvline(inside - 0.5, color="white", linewidth=3.6)
        axes.axvline(inside - 0.5, color="black", linewidth=1.4, linestyle=(0, (4, 2)))
    return image


def _inside(result: StoredAnswers) -> int:
    """Counts the lengths within the trained one; 0 if all of them are."""
    inside = sum(n <= (result.trained_length or 0) for n in result.lengths)
    return inside if inside < len(result.lengths) else 0


def _title(result: StoredAnswers) -> str:
    trials, name = result.protocol.get("trials"), Path(result.model["path"]).name
    line = f"; dashed line: trained at {tokens(result.trained_length or 0)}" if _inside(result) else ""
    cells = (
        f"{result.data['documents']:,} prompts"
        if trials is None
        else f"{trials} answer{'s' * (trials != 1)} in each cell"
    )
    return f"Retrieval ({result.protocol['task']}): {name}\n{cells}{line}"
