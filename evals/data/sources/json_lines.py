"""JSON lines, one object and document per line."""

from __future__ import annotations

import json
from collections.abc import Iterator

from ....errors import DataError
from ....files import local_path
from ..texts import Text, TextFile
from .read_options import ReadOptions
from .rows import Row, RowDocument, texts_of
from .text_file import text_of


def takes(source: str) -> bool:
    """Whether this is a ``.jsonl`` or ``.ndjson`` file."""
    path = local_path(source)
    return path.is_file() and path.suffix.lower() in (".jsonl", ".ndjson")


def read(source: str, asked: ReadOptions) -> Iterator[RowDocument]:
    """Reads the text of every line, one after the other as they are asked for.

    Raises:
        DataError: a line is not a JSON object, or lacks the field; names the line.
    """
    asked.only(source, "a file of rows", "text_field", "prompt_field", "encoding")
    yield from texts_of(_rows(source, asked.encoding), f"{source} line", asked, source)


def _rows(source: str, encoding: str | None) -> Iterator[tuple[int, Row]]:
    for number, line in enumerate(_lines(text_of(local_path(source), encoding)), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"{source} line {number} is not JSON: {error.msg} at column {error.colno}") from None
        except (ValueError, RecursionError):  # a number of thousands of digits, or brackets thousands deep
            raise DataError(f"{source} line {number} is not JSON that can be read; one object per line") from None
        if not isinstance(row, dict):
            raise DataError(f'{source} line {number} is not a JSON object; write one per line, like {{"text": "..."}}')
        yield number, row


def _lines(text: Text | TextFile) -> Iterator[str]:
    """Yields the lines of a text; of a large file one after the other as they are read."""
    begun: list[str] = []
    for piece in text.reading():
        first, *rest = piece.split("\n")
        begun.append(first)
        for line in rest:
            yield "".join(begun)
            begun = [line]
    yield "".join(begun)
