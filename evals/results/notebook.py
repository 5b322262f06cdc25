"""Writes the Markdown of a result as HTML, for notebooks."""

from __future__ import annotations

from html import escape

from ...output.wrapping import Grid, blocks, read_table


def to_html(markdown: str) -> str:
    """Returns tables as HTML tables, and every other block as a paragraph."""
    return "\n".join(_block(block) for block in blocks(markdown))


def _block(block: str) -> str:
    table = read_table(block)
    return f"<p>{_text(block)}</p>" if table is None else _table(table)


def _table(table: Grid) -> str:
    head = "".join(f"<th{_side(table, i)}>{_text(cell)}</th>" for i, cell in enumerate(table.header))
    rows = "".join(
        f"<tr>{''.join(f'<td{_side(table, i)}>{_text(cell)}</td>' for i, cell in enumerate(row))}</tr>"
        for row in table.rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _side(table: Grid, column: int) -> str:
    return f' style="text-align: {"right" if column in table.right else "left"}"'


def _text(text: str) -> str:
    return escape(text.replace("\\|", "|"))
