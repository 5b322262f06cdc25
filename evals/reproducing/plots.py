"""The pictures of a reproduction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...output.plotting import COLOURS, in_style
from ..metrics import drawing
from ..results.stored import Measured
from .rows import FAILS, HOLDS, ArmRow, ClaimRow

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def steps(rows: Sequence[ArmRow], stored: Measured) -> Figure:
    """Draws the perplexity of every arm that was measured on the way, at the target and at the trained length.

    Raises:
        RopescaleError: matplotlib is not installed.
    """
    measured = Counter(arm for arm, _ in dict.fromkeys((row.arm, row.step) for row in rows))
    arms = [arm for arm in measured if measured[arm] > 2] or [arm for arm in measured if measured[arm] > 1]
    with in_style(10, 4.2) as figure:
        both = figure.subplots(1, 2)
        for axes, length in zip(both, (stored.protocol["target_length"], stored.protocol["trained_length"])):
            for number, arm in enumerate(arms):
                points = [(row.step, row.ppl) for row in rows if row.arm == arm and row.length == length and row.ppl]
                colour = drawing.LINES[number % len(drawing.LINES)]
                axes.plot(*zip(*points), f"{drawing.MARKERS[number % len(drawing.MARKERS)]}-", color=colour, label=arm)
            if own := next((row.ppl for row in rows if row.schedule == "as-is" and row.length == length), None):
                axes.axhline(own, color=COLOURS["black"], linewidth=1, linestyle=(0, (4, 3)), label="the original")
            axes.set(xlabel="steps", ylabel="perplexity", yscale="log", title=f"the first {length:,} positions")
            drawing.plain_numbers(axes)
        both[1].legend()
    return figure


def claims(rows: Sequence[ClaimRow]) -> Figure:
    """Draws every difference with its interval, relative to what it may be; left of the line it comes out.

    Raises:
        RopescaleError: matplotlib is not installed.
    """
    shown = [(row, number, each) for row in rows for number, each in enumerate(row.estimates)]
    with in_style(8, 1 + 0.24 * len(shown)) as figure:
        axes = figure.subplots()
        for place, (row, _, (mean, low, high, most)) in enumerate(shown):
            colour = COLOURS[{HOLDS: "green", FAILS: "vermilion"}.get(row.verdict, "blue")]
            ends = [[(mean or 0) - (low or 0)], [(high or 0) - (mean or 0)]] if low is not None else None
            axes.errorbar([(mean or 0) - (most or 0)], [place], xerr=ends, fmt="o", color=colour, markersize=4)
        names = [row.claim if number == 0 else "" for row, number, _ in shown]
        axes.set_yticks(range(len(shown)), names)
        axes.invert_yaxis()
        axes.axvline(0, color=COLOURS["black"], linewidth=1)
        axes.set_xscale("symlog", linthresh=0.05)
        axes.set(
            xlabel="nats per token, or share of answers, beyond what the claim allows; left of the line it holds",
            title="The claims",
        )
    return figure
