"""A parquet file, one document per row."""

from __future__ import annotations

from ....errors import DataError
from ....files.reading import local_path
from ....formatting import first_line
from ..documents import Text
from .rows import refuse, texts_of


def takes(source: str) -> bool:
    """Whether this is a ``.parquet`` file."""
    path = local_path(source)
    return path.is_file() and path.suffix.lower() == ".parquet"


def read(source: str, split: str | None, text_field: str | None) -> list[Text]:
    """Reads the text of every row.

    Raises:
        DataError: the file cannot be read, or lacks the field.
    """
    import pyarrow
    import pyarrow.parquet

    refuse(source, "a file of rows", split=split)
    try:
        rows = pyarrow.parquet.read_table(local_path(source)).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{source} is not a readable parquet file: {first_line(error)}") from None
    return texts_of(rows, [f"{source} row {i}" for i in range(len(rows))], text_field, source)
