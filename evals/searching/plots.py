"""Draws a search: what each pair is divided by, and the loss on the way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...output.plotting import COLOURS, in_style
from .searched import FOUND, Searched

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw(stored: Searched) -> Figure:
    """Draws the divisor of each pair on the left, and on the right the losses by tokens spent, each kind by itself.

    Raises:
        RopescaleError: matplotlib is not installed.
    """
    with in_style(10, 4.6) as figure:
        panels = figure.subplot_mosaic([["pairs", "learned"], ["pairs", "held"]], sharex=False)
        _divisors(panels["pairs"], stored)
        _learned(panels["learned"], stored)
        _held(panels["held"], stored)
        panels["learned"].sharex(panels["held"])
    return figure


def _divisors(axes: Axes, stored: Searched) -> None:
    from matplotlib.ticker import MaxNLocator

    many = len(stored.tables) > 1
    for number, (layers, (own, start, found)) in enumerate(stored.tables.items()):
        for table, label, colour, style in ((start, stored.start, "black", "--"), (found, FOUND, "vermilion", "-")):
            ratios = [b / f if f else float("nan") for b, f in zip(own, table, strict=True)]
            named = f"{layers}: {label}" if many else label
            axes.plot(ratios, style, marker="os^D"[number % 4], markersize=3.5, color=COLOURS[colour], label=named)
    axes.set_title("What the frequency of each pair is divided by", loc="left", fontsize=10)
    axes.set_xlabel("pair (0 turns fastest)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylabel("divisor")
    axes.legend(frameon=False)


def _learned(axes: Axes, stored: Searched) -> None:
    """Draws the loss of each step, on its own windows of the text to learn from: they differ more than steps do."""
    x, y = [tokens / 1000 for tokens, _ in stored.steps], [loss for _, loss in stored.steps]
    axes.plot(x, y, "o", color=COLOURS["blue"], markersize=3.5, alpha=0.6, markeredgewidth=0)
    axes.set_title(f"Loss of the {stored.held} to learn from, a dot a step", loc="left", fontsize=10)
    axes.set_ylabel(_LOSS)


def _held(axes: Axes, stored: Searched) -> None:
    """Draws the loss of the held-out text at each check, and marks the one that was taken."""
    x, y = [check.spent / 1000 for check in stored.checks], [check.loss for check in stored.checks]
    axes.plot(x, y, "o-", color=COLOURS["vermilion"], markersize=5)
    best = stored.found
    ring: dict[str, Any] = {"markersize": 11, "markeredgecolor": "black", "markerfacecolor": "none"}
    axes.plot([best.spent / 1000], [best.loss], "o", label=FOUND, linestyle="", **ring)
    axes.set_title(f"Loss of the held-out {stored.held} at each check", loc="left", fontsize=10)
    axes.set_xlabel("thousand tokens spent")
    axes.set_ylabel(_LOSS)
    axes.margins(y=0.18)
    axes.legend(frameon=False)


_LOSS = "weighted NLL\n(nats per token)"
