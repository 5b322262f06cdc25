"""A parquet file, one document per row."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from ....errors import DataError
from ....files.reading import local_path
from ....formatting import first_line
from .rows import RowDocument, refuse, texts_of


def takes(source: str) -> bool:
    """Whether this is a ``.parquet`` file."""
    path = local_path(source)
    return path.is_file() and path.suffix.lower() == ".parquet"


def read(source: str, split: str | None, text_field: str | None) -> Iterator[RowDocument]:
    """Reads the text of every row.

    Raises:
        DataError: the file cannot be read, or lacks the field.
    """
    import pyarrow
    import pyarrow.parquet

    refuse(source, "a file of rows", split=split)
    try:
        with pyarrow.parquet.ParquetFile(local_path(source)) as file:
            batches = file.iter_batches(_TOGETHER)
            rows = (row for batch in batches for n in range(len(batch)) for row in batch[n : n + 1].to_pylist())
            yield from texts_of(rows, (f"{source} row {i}" for i in count()), text_field, source)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{source} is not a readable parquet file: {first_line(error)}") from None


_TOGETHER = 64
"""Rows that are read at a time. They become Python's objects one by one: a list of ids makes many."""
