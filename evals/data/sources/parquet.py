"""A parquet file, one document per row."""

from __future__ import annotations

from collections.abc import Iterator

from ....errors import DataError
from ....files import local_path
from ....output.formatting import first_line
from .read_options import ReadOptions
from .rows import RowDocument, texts_of


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

    asked.only(source, "a file of rows", "text_field")
    try:
        with pyarrow.parquet.ParquetFile(local_path(source)) as file:
            batches = file.iter_batches(_TOGETHER)
            rows = (row for batch in batches for n in range(len(batch)) for row in batch[n : n + 1].to_pylist())
            yield from texts_of(enumerate(rows), f"{source} row", asked.text_field, source)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{source} is not a readable parquet file: {first_line(error)}") from None


_TOGETHER = 64
"""Rows that are read at a time. They become Python's objects one by one: a list of ids makes many."""
