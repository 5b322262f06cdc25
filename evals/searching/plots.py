"""Draws a search: what each pair is divided by, and the loss on the way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...plotting import COLOURS, STYLE, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .searched import Searched


def draw(stored: Searched) -> Figure:
    """Draws the divisor of each pair on the left, and the losses by tokens spent on the right.

    Raises:
        RopescaleError: matplotlib is not installed.
    """
    figure = new_figure(10, 4.2)
    from matplotlib import rc_context

    with rc_context(STYLE):
        left, right = figure.subplots(1, 2)
        _divisors(left, stored)
        _losses(right, stored)
    return figure


def _divisors(axes: Axes, stored: Searched) -> None:
    many = len(stored.tables) > 1
    for number, (layers, (own, start, found)) in enumerate(stored.tables.items()):
        for table, label, colour, style in ((start, stored.start, "black", "--"), (found, "found", "vermilion", "-")):
            ratios = [b / f if f else float("nan") for b, f in zip(own, table, strict=True)]
            named = f"{layers}: {label}" if many else label
            axes.plot(ratios, style, marker="os^D"[number % 4], markersize=3.5, color=COLOURS[colour], label=named)
    axes.set_xlabel("pair")
    axes.set_ylabel("frequency divided by")
    axes.legend(frameon=False)


def _losses(axes: Axes, stored: Searched) -> None:
    axes.plot(
        [tokens / 1000 for tokens, _ in stored.steps],
        [loss for _, loss in stored.steps],
        ".",
        color=COLOURS["sky"],
        markersize=3,
        label="text to learn from",
    )
    axes.plot(
        [check.spent / 1000 for check in stored.checks],
        [check.loss for check in stored.checks],
        "o-",
        color=COLOURS["vermilion"],
        label="held-out text",
    )
    axes.axhline(stored.found.loss, color=COLOURS["vermilion"], linewidth=0.8, linestyle=":")
    axes.set_xlabel("thousand tokens spent")
    axes.set_ylabel("weighted NLL (nats per token)")
    axes.legend(frameon=False)
