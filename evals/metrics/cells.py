"""Formats numbers and intervals for tables."""

import csv
import io
import math
from collections.abc import Iterable
from dataclasses import asdict, fields
from typing import Any

from ...output.formatting import Grid, escaped, grid, inert
from ..statistics.intervals import DOCUMENTS, Estimate

TABLE, SENTENCE = 4, 3
"""The decimals of losses and differences in nats, in tables and in sentences."""

_WIDE = 0.3
"""The widest half-interval, relative to the perplexity, that is shown with a ±. At this width, the bounds of exp(nats)
are 26% below and 34% above the perplexity."""

_LEANING = 1.4
"""The largest ratio of an interval's sides for which the interval is shown with a ±."""

Line = list[Any]
"""A line of a CSV file; None for a missing value."""


def table(corner: str, cells: Iterable[tuple[str, int, str]]) -> Grid:
    """Returns a table with a line per name and a column per length.

    Args:
        corner: the header of the first column.
        cells: the name, the length and the text of each cell; lines are in the order of the names.
    """
    lines: dict[str, dict[int, str]] = {}
    for name, length, text in cells:
        lines.setdefault(name, {})[length] = text
    lengths = sorted({length for line in lines.values() for length in line})
    header = [corner, *(f"{length:,}" for length in lengths)]
    rows = []
    for name, line in lines.items():
        rows.append([escaped(name), *(line.get(length, "") for length in lengths)])
    return grid(header, rows, right=range(1, len(header)))


def csv_text(lines: Iterable[Iterable[object]]) -> str:
    """Formats lines as CSV; None becomes an empty cell, and text never a formula of a spreadsheet."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(map(_csv_cell, line) for line in lines)
    return out.getvalue()


def _csv_cell(value: object) -> object:
    if isinstance(value, list):
        return " ".join(str(_csv_cell(each)) for each in value)
    return inert(value) if isinstance(value, str) else value


def lines_of(kind: type, rows: Iterable[Any]) -> list[Line]:
    """Returns the lines of a CSV file: the field names of a dataclass, then its rows."""
    header = [each.name for each in fields(kind)]
    return [header, *(list(asdict(row).values()) for row in rows)]


def exp(value: float) -> float:
    """Returns ``exp(value)``, clipped so that the huge interval of a broken model does not overflow."""
    return math.exp(min(value, 709.0))


def interval_cell(value: float | None, low: float | None, high: float | None, over: str | None = None) -> str:
    """Formats a value with its interval: ``13.82 ± 2.2``, or ``96.44 (12.3 to 756)`` if it is wide or asymmetric; the
    value alone without one.

    An interval that is symmetric in nats is not symmetric in perplexity, so ± would be wrong for a wide one.

    Args:
        over: the interval's sampling unit; see :func:`mark`.
    """
    if value is None:
        return "-"
    if low is None or high is None:
        return digits(value, 4)
    half = (high - low) / 2
    if half > _WIDE * value or leans(value, low, high):
        return f"{digits(value, 4)} ({digits(low, 3)} to {digits(high, 3)}){mark(over)}"
    width = f"{half:,.0f}" if half >= 10 else digits(half, 2)
    return f"{digits(value, 4)} ± {width}{mark(over)}"


def change_cell(change: Estimate, decimals: int = TABLE) -> str:
    """Formats a change in nats with its interval."""
    interval = around(change.mean, change.low, change.high, decimals, sign="+")
    return f"{signed(change.mean, decimals)}{interval}{mark(change.over)}"


def percent(change: Estimate) -> str:
    """Formats a change in loss as a change in perplexity: ``+5.1% (+3.8% to +7.6%)``, or a multiple if it is huge."""
    known = [each for each in (change.mean, change.low, change.high) if each is not None]
    if max(known) > math.log(100):
        return f"{digits(exp(change.mean), 3)} times"
    mean, *bounds = (100 * round(math.expm1(each), 5) for each in known)
    if max(map(abs, (mean, *bounds))) < 0.05:
        return "no measurable change"
    interval = around(mean, *bounds, decimals=1, sign="+", unit="%") if bounds else ""
    return f"{mean:+.1f}%{interval}"


def mark(interval: str | None) -> str:
    """Returns " †" for an interval that is not over documents, and so does not generalise to other texts; else ""."""
    return "" if interval in (None, DOCUMENTS) else " †"


def digits(value: float, count: int) -> str:
    """Formats a number with ``count`` significant digits, commas for thousands, and powers of ten from a million."""
    if value >= 1e6:
        return f"{value:.{count - 1}e}"
    return f"{value:,.0f}" if value >= 1000 else f"{value:#.{count}g}".rstrip(".")


def signed(value: float, decimals: int = TABLE) -> str:
    """Formats a number with its sign, or a rounded zero without one."""
    sign = "+" if round(value, decimals) else ""
    return f"{value:{sign}z.{decimals}f}"


def leans(value: float, low: float, high: float) -> bool:
    """Returns whether an interval is too asymmetric for a ±."""
    below = value - low
    above = high - value
    return max(below, above) > max(_LEANING * min(below, above), 1e-6 * abs(value))


def around(
    value: float, low: float | None, high: float | None, decimals: int = TABLE, sign: str = "", unit: str = ""
) -> str:
    """Formats an interval that follows its value: `` ± 0.1000``, or `` (-0.0512 to 0.2500)`` if ± would be wrong;
    "" without one.

    A ± is wrong if the interval is asymmetric, or if ± and the bounds disagree on whether zero is in the interval. A
    nonzero bound or half-interval that rounds to zero is not shown as zero.

    Args:
        decimals, sign: the format of the bounds; the half-interval has no sign.
        unit: what follows a number, such as "%".
    """
    if low is None or high is None:
        return ""
    half = (high - low) / 2
    least = 10.0**-decimals
    seems_sure = abs(round(value, decimals)) > round(half, decimals)
    misleads = seems_sure != (low > 0 or high < 0) and max(abs(low), abs(high)) >= least
    if misleads or (leans(value, low, high) and high - low > least):
        return f" ({_bound(low, decimals, sign)}{unit} to {_bound(high, decimals, sign)}{unit})"
    if 0 < half < least / 2:
        return f" ± <{least:.{decimals}f}{unit}"
    return f" ± {half:.{decimals}f}{unit}"


def _bound(value: float, decimals: int, sign: str) -> str:
    if value and not round(value, decimals):
        return f"{value:{sign}.1g}"
    return f"{value:{sign}.{decimals}f}"
