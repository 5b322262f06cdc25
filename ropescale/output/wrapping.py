"""Renders pages: fitted to a terminal, and as HTML."""

from __future__ import annotations

import os
import re
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from html import escape
from itertools import zip_longest
from typing import TextIO

from .formatting import Block, Grid, Page, markdown

_LINE = 100
"""The longest line of prose in characters, on any terminal."""

_WORD = 22
"""The longest word in characters; longer words are cut. Shorter cells stay on one line."""


_COMMAND = re.compile(r"\b(?:ropescale [a-z]+|pip install|python -m) ")
"""The pattern of lines with a command to copy."""


class _Cells(textwrap.TextWrapper):
    """Wraps cells; a line may also break after a slash, colons, or a comma that does not group thousands."""

    wordsep_re = re.compile(r"(\s+|\S*?(?:,(?!\d{3}\b)|/|:+))")


def fitted_to(stream: TextIO | None, page: Page) -> str:
    """Returns a page as Markdown, fitted to a terminal, or to COLUMNS if set."""
    if "COLUMNS" not in os.environ and (stream is None or not stream.isatty()):
        return markdown(page)
    return fitted(page, shutil.get_terminal_size().columns)


def folded_to(stream: TextIO | None, line: str) -> str:
    """Folds a line of prose like :func:`fitted_to`; keeps commands to copy and errors on one line."""
    return line if _COMMAND.search(line) or line.startswith("error:") else fitted_to(stream, [line])


def fitted(page: Page, width: int) -> str:
    """Returns Markdown with lines of at most ``width`` characters, if possible; code stays unchanged."""
    width = max(width, 40)
    return markdown(_fitted_block(block, width) for block in page if block)


def _fitted_block(block: Block, width: int) -> str:
    if isinstance(block, Grid):
        return markdown(_wrapped(piece, width) for piece in _pieces(block, width))
    if block.startswith("```"):
        return block
    lines = block.splitlines()
    if max(map(len, lines)) > width:  # join lines, except items and indented lines
        lines = re.sub(r"\n(?![ *#>|-])", " ", block).splitlines()
    indents = [len(re.split(r"(?<=[* ])(?=[^* ])", line)[0]) if line[:1] in "* " else 0 for line in lines]
    style = {"width": min(width, _LINE), "break_long_words": False, "break_on_hyphens": False}
    return "\n".join(
        textwrap.fill(line, subsequent_indent=" " * indent, **style)
        for line, indent in zip(lines, indents, strict=True)
    )


def _wrapped(table: Grid, width: int) -> Grid:
    """Narrows text columns until the table fits, the widest first; numbers stay on one line."""
    widths = table.widths
    least = _least(table)
    while _across(widths) > width:
        wide = [i for i, size in enumerate(widths) if size > least[i]]
        if not wide:
            break
        widths[max(wide, key=lambda i: widths[i])] -= 1
    rows = []
    for row in table.rows:
        cells = [_Cells(size).wrap(cell) for cell, size in zip(row, widths, strict=True)]
        rows += [list(line) for line in zip_longest(*cells, fillvalue="")]
    return replace(table, rows=rows)


def _across(widths: Sequence[int]) -> int:
    """Returns the line length of a table with columns of these widths."""
    return sum(widths) + 3 * len(widths) + 1


def _least(table: Grid) -> list[int]:
    """Returns the minimum width of each column: the full width for numbers, the header or a long word for text."""
    widths = zip(table.widths, table.header, strict=True)
    return [w if i in table.right else min(w, max(len(header), _WORD)) for i, (w, header) in enumerate(widths)]


def _pieces(table: Grid, width: int) -> Iterator[Grid]:
    """Yields the table, or, if folded cells do not fit, several tables that repeat the first column."""
    if _across(_least(table)) <= width or len(table.header) == 1:
        yield table
        return
    left = list(range(1, len(table.header)))
    while left:
        count = len(left)
        while count > 1 and _across(_least(_only(table, [0, *left[:count]]))) > width:
            count -= 1
        yield _only(table, [0, *left[:count]])
        left = left[count:]


def _only(table: Grid, columns: Sequence[int]) -> Grid:
    """Returns the table with only these columns."""
    header, *rows = [[line[i] for i in columns] for line in [table.header, *table.rows]]
    return Grid(header, rows, [n for n, i in enumerate(columns) if i in table.right])


def to_html(page: Iterable[Block]) -> str:
    """Returns a page as HTML."""
    return "\n".join(_html(block) if isinstance(block, Grid) else _block_html(block) for block in page if block)


def _block_html(block: str) -> str:
    heading = re.fullmatch("(#{1,4}) (.*)", block)
    if heading:
        level = len(heading[1]) + 2
        return f"<h{level}>{_text(heading[2])}</h{level}>"
    if block.startswith("```"):
        return f"<pre><code>{escape(block.partition(chr(10))[2].rpartition(chr(10))[0])}</code></pre>"
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", _text(block))
    return f"<p>{text}</p>"


def _html(table: Grid) -> str:
    sides = ["right" if i in table.right else "left" for i in range(len(table.header))]

    def line(tag: str, cells: Sequence[str]) -> str:
        style = "padding: 0.2em 0.8em; white-space: nowrap"
        words = (
            f'<{tag} style="text-align: {side}; {style}">{folding(cell)}</{tag}>' for side, cell in zip(sides, cells)
        )
        return f"<tr>{''.join(words)}</tr>"

    rows = "".join(line("td", row) for row in table.rows)
    return f"<table><thead>{line('th', table.header)}</thead><tbody>{rows}</tbody></table>"


def folding(cell: str) -> str:
    """Returns a cell as HTML; a long one may break after a comma, a slash or a colon, and before a dot."""
    text = _text(cell)
    return text if len(cell) <= _WORD else re.sub(r"((?:,(?!\d{3}\b)|[/:]+)(?=\S)|(?=\.[a-z]))", r"\1<wbr>", text)


def _text(text: str) -> str:
    return escape(re.sub(r"\\([^\w\s])", r"\1", text))
