"""The pictures of a measurement: perplexity against length, and loss by position.

Colours are Okabe and Ito's, which colour-blind readers tell apart; markers differ too, for grey print.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...plotting import COLOURS, STYLE, new_figure, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .result import Bin, Result, Row

LINES = [COLOURS[name] for name in ("black", "blue", "vermilion", "green", "purple", "sky", "orange")]
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")


def ppl_vs_length(result: Result, path: str | Path | None = None) -> Figure:
    """One line per schedule with its 95% band, both axes logarithmic, the trained length marked.

    Args:
        path: of an image file to write it to; None only returns the figure.

    Raises:
        RopescaleError: matplotlib is not installed.
        CheckpointError: the file cannot be written.
    """
    figure, axes = _figure()
    for number, schedule in enumerate(result.schedules):
        rows = sorted((row for row in result.rows if row.schedule == schedule), key=lambda row: row.length)
        axes.plot([row.length for row in rows], [row.ppl for row in rows], label=schedule, **_style(number))
        _band(axes, rows, number)
    axes.set_yscale("log")
    _length_axis(axes, result.lengths, "context length (tokens)")
    axes.set_ylabel("perplexity")
    _plain_numbers(axes)
    return _finish(figure, axes, result, path, result.title)


def loss_by_position(result: Result, path: str | Path | None = None) -> Figure:
    """Mean NLL of the tokens around each position, one line per schedule, positions from 16 on.

    The very first tokens of a document are hard under every schedule and would flatten the rest.

    Args:
        path: of an image file to write it to; None only returns the figure.

    Raises:
        RopescaleError: matplotlib is not installed.
        CheckpointError: the file cannot be written.
    """
    figure, axes = _figure()
    shown = {schedule: _later(result.by_position(schedule)) for schedule in result.schedules}
    for number, (schedule, bins) in enumerate(shown.items()):
        middles = [(each.start * each.stop) ** 0.5 for each in bins]
        axes.plot(middles, [each.nll for each in bins], label=schedule, **_style(number))
        banded = [(m, each.low, each.high) for m, each in zip(middles, bins) if each.low is not None]
        if banded:
            axes.fill_between(*zip(*banded), color=_colour(number), alpha=0.12, linewidth=0)
    first, last = min(bins[0].start for bins in shown.values()), max(bins[-1].stop for bins in shown.values())
    powers = [2**k for k in range(last.bit_length() + 1) if first <= 2**k <= last]
    _length_axis(axes, powers or [first, last], "position (tokens before)")
    axes.set_ylabel("loss (nats per token)")
    return _finish(figure, axes, result, path, "Loss by position")


def _later(bins: list[Bin], first: int = 16) -> list[Bin]:
    """The bins from position ``first`` on; all of them where that would leave few."""
    later = [each for each in bins if each.start >= first]
    return later if len(later) >= 4 else bins


def _figure() -> tuple[Any, Any]:
    figure = new_figure(7, 4.4)
    from matplotlib import rc_context

    with rc_context(STYLE):
        return figure, figure.subplots()


def _style(number: int) -> dict[str, Any]:
    marker = MARKERS[number % len(MARKERS)]
    line = ("-", "--", ":")[number // len(LINES) % 3]
    size = {"markersize": 6.5, "linewidth": 2.6} if number == 0 else {"markersize": 4.5, "linewidth": 1.5}
    # The first is wider, so that it can still be seen where another has the same values.
    return {"color": _colour(number), "marker": marker, "linestyle": line, **size}


def _colour(number: int) -> str:
    return LINES[number % len(LINES)]


def _band(axes: Any, rows: Sequence[Row], number: int) -> None:
    banded = [(row.length, row.ppl_low, row.ppl_high) for row in rows if row.ppl_low is not None]
    if banded:
        axes.fill_between(*zip(*banded), color=_colour(number), alpha=0.12, linewidth=0)


def _length_axis(axes: Any, ticks: Iterable[int], name: str) -> None:
    from matplotlib.ticker import FixedLocator, NullLocator

    axes.set_xscale("log", base=2)
    shown = _spread(sorted(ticks))
    axes.xaxis.set_major_locator(FixedLocator(shown))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticklabels([_tokens(tick) for tick in shown])
    axes.set_xlabel(name)


def _spread(ticks: list[int]) -> list[int]:
    """The ticks that are at least a fifteenth of the axis apart, the longest kept, so that no labels collide."""
    kept: list[int] = []
    for tick in reversed(ticks):
        if not kept or (kept[-1] / tick) ** 15 >= kept[0] / ticks[0]:
            kept.append(tick)
    return kept[::-1]


def _short(label: str, most: int = 36) -> str:
    return label if len(label) <= most else f"{label[: most - 1]}…"


def _tokens(length: int) -> str:
    return f"{length // 1024}k" if length >= 1024 and length % 1024 == 0 else str(length)


def _plain_numbers(axes: Any) -> None:
    """1, 2, 5, 10, 20, ... instead of powers of ten, where the range is small enough to read."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axes.get_ylim()
    steps = (1.0, 2.0, 5.0) if high / low > 4 else (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0)
    if high / low < 1e4:
        axes.yaxis.set_major_locator(LogLocator(subs=steps))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _finish(figure: Figure, axes: Any, result: Result, path: str | Path | None, title: str) -> Figure:
    low, high = axes.get_xlim()
    if result.trained_length and low < result.trained_length < high:
        axes.axvline(result.trained_length, color="#555555", linewidth=1, linestyle=(0, (4, 3)), zorder=0)
        axes.annotate(
            f"trained at {_tokens(result.trained_length)}",
            (result.trained_length, 1),
            xycoords=("data", "axes fraction"),
            xytext=(4, -4),
            textcoords="offset points",
            va="top",
            fontsize=8,
            color="#555555",
        )
    documents = result.data["documents"]
    bands = ", bands: 95%" if documents > 1 else ""
    about = f"{Path(result.model['path']).name}, {documents} document{'s' * (documents != 1)}{bands}"
    axes.set_title(f"{title}\n{about}", loc="left", fontsize=10)
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, [_short(label) for label in labels], loc="outside right upper", fontsize=8, frameon=False)
    if path is not None:
        save(figure, path)
    return figure
