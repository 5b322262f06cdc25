"""Text for people: tables, and what an error says first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from . import escaping


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int] = ()) -> str:
    """A Markdown table with its columns aligned for the eye.

    Args:
        right: the columns, by index, that hold numbers and stand to the right.
    """
    numeric = set(right)
    cells = [[escaping.cell(escaping.visible(cell)) for cell in row] for row in [header, *rows]]
    widths = [max(3, *(len(cell) for cell in column)) for column in zip(*cells)]
    rule = ["-" * (width - 1) + ":" if i in numeric else "-" * width for i, width in enumerate(widths)]
    lines = [[_pad(cell, widths[i], i in numeric) for i, cell in enumerate(row)] for row in cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in [lines[0], rule, *lines[1:]])


def first_line(error: BaseException) -> str:
    """What an error of somebody else's library says, short enough to go inside a sentence of ours."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".:")


def size(count: int) -> str:
    """``12.3 kB`` or ``4.56 GB``: bytes in three digits and powers of 1000."""
    units = ("B", "kB", "MB", "GB", "TB")
    power = min((len(str(count)) - 1) // 3, len(units) - 1)
    return f"{count / 1000**power:.3g} {units[power]}"


def _pad(cell: str, width: int, right: bool) -> str:
    return cell.rjust(width) if right else cell.ljust(width)
