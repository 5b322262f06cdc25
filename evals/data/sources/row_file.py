"""Files of rows, one document per row: JSON lines, and parquet.

``datasets`` does not read them, because it does not report the line of an error, treats a row without the field as
empty, fails on dates outside Python's range in unused columns, and takes a second to start.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ....errors import DataError
from ....files import local_path
from ....output.formatting import first_line
from ..texts import Text, TextFile
from .base import CHAT, IDS, TOOLS, ReadOptions, Row, RowDocument, texts_of
from .text_file import JSON_LINES, text_of

if TYPE_CHECKING:
    import pyarrow


def takes(source: str) -> bool:
    """Whether this is a ``.jsonl``, ``.ndjson`` or ``.parquet`` file."""
    path = local_path(source)
    return path.is_file() and path.suffix.lower() in (*JSON_LINES, ".parquet")


def read(source: str, asked: ReadOptions) -> Iterator[RowDocument]:
    """Reads the documents of the rows lazily.

    Raises:
        DataError: the file cannot be read, a line is not a JSON object, or a row lacks the field; names the row.
    """
    if local_path(source).suffix.lower() == ".parquet":
        asked.only(source, "a file of rows", "text_field", "prompt_field")
        return texts_of(_parquet(source, asked), f"{source} row", asked, source)
    asked.only(source, "a file of rows", "text_field", "prompt_field", "encoding")
    return texts_of(_json_lines(source, asked.encoding), f"{source} line", asked, source)


def _json_lines(source: str, encoding: str | None) -> Iterator[tuple[int, Row]]:
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
    """Yields the lines of a text, lazily for a large file."""
    begun: list[str] = []
    for piece in text.reading():
        first, *rest = piece.split("\n")
        begun.append(first)
        for line in rest:
            yield "".join(begun)
            begun = [line]
    yield "".join(begun)


def _parquet(source: str, asked: ReadOptions) -> Iterator[tuple[int, Row]]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(local_path(source)) as file:
            names = file.schema_arrow.names
            if twice := [name for name in names if names.count(name) > 1]:
                raise DataError(f"{source} has {names.count(twice[0])} columns named {twice[0]!r}; rename all but one")
            batches = file.iter_batches(_TOGETHER, columns=_columns(file.schema_arrow, asked))
            rows = (row for batch in batches for n in range(len(batch)) for row in batch[n : n + 1].to_pylist())
            yield from enumerate(rows)
    except (UnicodeDecodeError, OverflowError) as error:
        raise DataError(f"{source} holds a value that Python cannot read ({error}); write the file again") from None
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{source} is not a readable parquet file: {first_line(error)}") from None


_TOGETHER = 64
"""Rows per read. They are converted to Python objects one by one, because lists of ids create many."""


def _columns(schema: pyarrow.Schema, asked: ReadOptions) -> list[str] | None:
    """Names the columns that may contain documents; None for all. Others may contain unsupported dates."""
    if asked.prompt_field is not None:
        return [each.name for each in schema if re.search("string|int", str(each.type))]
    kinds = {each.name: str(each.type) for each in schema}
    lists = [name for name in (CHAT, IDS) if "list" in kinds.get(name, "")]
    wanted = asked.text_field or next(iter([*(["text"] if "text" in kinds else []), *lists]), None)
    if wanted is not None and wanted in kinds:
        return [name for name in (wanted, TOOLS) if name in kinds]
    return [name for name, kind in kinds.items() if "string" in kind] or None
