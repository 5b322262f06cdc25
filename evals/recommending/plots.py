"""Draws a recommendation: every candidate with Pareto's front, and the finalists with their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...output.naming import abbreviated
from ...output.plotting import in_style
from ..metrics.drawing import LINES, MARKERS, length_axis, short, tokens
from ..statistics.intervals import PERCENT
from .evidence import CandidateRow, CurveRow, FinalistRow, Judged

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LEAST_ROOM = 0.05
"""Nats beyond the outermost points that are shown."""

_FAR = 0.15
"""Nats above YaRN's default at the target; what is further up is outside the picture."""


def front(rows: Sequence[CandidateRow], stored: Judged, chosen: str) -> Figure:
    """Draws the change at the target against the change within the trained length, for every candidate.

    Candidates far from the front, on the side of being worse, are left out of the picture, which says how many.

    Raises:
        RopescaleError: matplotlib is not installed.
    """
    with in_style(8.4, 4.8) as figure:
        axes = figure.subplots()
        near = _near(rows, chosen)
        for number, family in enumerate(dict.fromkeys(_family(row) for row in near)):
            mine = [row for row in near if _family(row) == family]
            x, y = [row.delta_short for row in mine], [row.delta_target for row in mine]
            colour, marker = LINES[number % len(LINES)], MARKERS[number % len(MARKERS)]
            axes.plot(x, y, linestyle="", marker=marker, color=colour, markersize=5, alpha=0.8, label=family)
        edge = sorted((row.delta_short, row.delta_target) for row in near if row.front)
        if edge:
            axes.step(*zip(*edge), where="post", color="#999999", linewidth=1, zorder=1, label="Pareto's front")
        best = [row for row in near if row.schedule == chosen]
        for row in best:
            axes.plot([row.delta_short], [row.delta_target], "o", markersize=13, fillstyle="none", color="black",
                      label=f"recommended:\n{short(stored.named(chosen))}")  # fmt: skip
        protocol = stored.protocol
        axes.set_xlabel(f"change within the trained {tokens(protocol['trained_length'])} (nats per token)")
        axes.set_ylabel(f"change at {tokens(protocol['target_length'])} (nats per token)")
        left_out = len(rows) - len(near)
        note = f", {left_out} far worse ones outside" if left_out else ""
        name = Path(stored.model["path"]).name
        title = f"Every candidate against {short(stored.named(rows[0].baseline), 24)}; best is lower left\n{name}{note}"
        axes.set_title(title, loc="left", fontsize=10)
        figure.legend(loc="outside right upper", fontsize=8, frameon=False)
    return figure


def _near(rows: Sequence[CandidateRow], chosen: str) -> list[CandidateRow]:
    """Returns the candidates that are not far worse at the target, nor than those of the front at the short length."""
    good = [row for row in rows if row.delta_target <= _FAR or row.schedule == chosen]
    edge = [row.delta_short for row in good if row.front or row.schedule == chosen]
    most = max(edge) + max(_LEAST_ROOM, max(edge) - min(edge))
    return [row for row in good if row.delta_short <= most]


def _family(row: CandidateRow) -> str:
    return row.schedule.partition(":")[0]


def finalists(rows: Sequence[FinalistRow], curves: Sequence[CurveRow], stored: Judged) -> Figure:
    """Draws each finalist's difference from the recommended one with its interval, and loss against length.

    Raises:
        RopescaleError: matplotlib is not installed.
    """
    with in_style(9.6, max(3.4, 1.6 + 0.38 * len(rows))) as figure:
        left, right = figure.subplots(1, 2, width_ratios=(1.1, 1))
        _intervals(left, rows, abbreviated([stored.named(row.schedule) for row in rows], 40))
        _curves(right, [row.schedule for row in rows], curves)
        about = f"{Path(stored.model['path']).name}, {stored.protocol['held_out_windows']:,} windows that chose nothing"
        figure.suptitle(f"The finalists on the text that decides\n{about}", x=0.01, ha="left", fontsize=10)
    return figure


def _intervals(axes: Axes, rows: Sequence[FinalistRow], names: Sequence[str]) -> None:
    for place, row in enumerate(rows):
        colour = LINES[place % len(LINES)]
        if row.low is not None and row.high is not None and row.schedule != row.baseline:
            axes.hlines(place, row.low, row.high, color=colour, linewidth=2)
        axes.plot([row.delta], [place], MARKERS[place % len(MARKERS)], color=colour, markersize=6)
    axes.axvline(0, color="#555555", linewidth=1)
    values = sorted(row.delta for row in rows)
    inner = [value for value in values if value <= 4 * max(values[len(values) // 2], _LEAST_ROOM)]
    reach = [
        bound for row in rows if row.delta in inner for bound in (row.low, row.high, row.delta) if bound is not None
    ]
    room = 0.08 * max(max(reach) - min(reach), _LEAST_ROOM)
    axes.set_xlim(min(reach) - room, max(reach) + room)
    for place, row in enumerate(rows):
        if row.delta > max(reach) + room:
            text, at = f"{row.delta:+.2f} →", (1, place)
            axes.annotate(text, at, xycoords=("axes fraction", "data"), ha="right", va="center", fontsize=8)
    axes.set_yticks(range(len(rows)), names, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel(f"objective minus the first one's (nats; bars: {PERCENT} for all together)", fontsize=8)


def _curves(axes: Axes, labels: Sequence[str], curves: Sequence[CurveRow]) -> None:
    for place, label in enumerate(labels):
        mine = sorted((row for row in curves if row.schedule == label), key=lambda row: row.length)
        style = {"color": LINES[place % len(LINES)], "marker": MARKERS[place % len(MARKERS)], "markersize": 4}
        axes.plot(
            [row.length for row in mine], [row.nll for row in mine], linewidth=2.4 if place == 0 else 1.3, **style
        )
    length_axis(axes, sorted({row.length for row in curves}), "context length (tokens)")
    axes.set_ylabel("loss up to there (nats per token)")
