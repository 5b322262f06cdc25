"""A parquet file, one document per row."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ....errors import DataError
from ....files import local_path
from ....output.formatting import first_line
from .read_options import ReadOptions
from .rows import CHAT, IDS, TOOLS, RowDocument, texts_of

if TYPE_CHECKING:
    import pyarrow


def takes(source: str) -> bool:
    """Whether this is a ``.parquet`` file."""
    path = local_path(source)
    return path.is_file() and path.suffix.lower() == ".parquet"


def read(source: str, asked: ReadOptions) -> Iterator[RowDocument]:
    """Reads the text of every row.

    Raises:
        DataError: the file cannot be read, or lacks the field.
    """
    import pyarrow
    import pyarrow.parquet

    asked.only(source, "a file of rows", "text_field", "prompt_field")
    try:
        with pyarrow.parquet.ParquetFile(local_path(source)) as file:
            names = file.schema_arrow.names
            if twice := [name for name in names if names.count(name) > 1]:
                raise DataError(f"{source} has {names.count(twice[0])} columns named {twice[0]!r}; rename all but one")
            batches = file.iter_batches(_TOGETHER, columns=_columns(file.schema_arrow, asked))
            rows = (row for batch in batches for n in range(len(batch)) for row in batch[n : n + 1].to_pylist())
            yield from texts_of(enumerate(rows), f"{source} row", asked, source)
    except (UnicodeDecodeError, OverflowError) as error:
        raise DataError(f"{source} holds a value that Python cannot read ({error}); write the file anew") from None
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{source} is not a readable parquet file: {first_line(error)}") from None


def _columns(schema: pyarrow.Schema, asked: ReadOptions) -> list[str] | None:
    """Names the columns that may hold the documents; None for all. Others may hold dates that Python does not have."""
    if asked.prompt_field is not None:
        return [each.name for each in schema if re.search("string|int", str(each.type))]
    kinds = {each.name: str(each.type) for each in schema}
    lists = [name for name in (CHAT, IDS) if "list" in kinds.get(name, "")]
    wanted = asked.text_field or next(iter([*(["text"] if "text" in kinds else []), *lists]), None)
    if wanted is not None and wanted in kinds:
        return [name for name in (wanted, TOOLS) if name in kinds]
    return [name for name, kind in kinds.items() if "string" in kind] or None


_TOGETHER = 64
"""Rows that are read at a time. They become Python's objects one by one: a list of ids makes many."""
