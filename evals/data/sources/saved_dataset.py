"""A folder that ``datasets`` saved, one document per row."""

from __future__ import annotations

from collections.abc import Iterator

from ....errors import DataError
from ....files import local_path
from ....output.formatting import first_line
from .read_options import ReadOptions
from .rows import RowDocument, dataset_texts


def takes(source: str) -> bool:
    """Whether this is a folder that ``save_to_disk`` wrote."""
    path = local_path(source)
    return bool(source) and any((path / name).exists() for name in ("state.json", "dataset_dict.json"))


def read(source: str, asked: ReadOptions) -> Iterator[RowDocument]:
    """Reads the text of every row of one split.

    Raises:
        DataError: the folder cannot be read, or lacks the split or the field.
    """
    import datasets

    asked.only(source, "a dataset", "split", "text_field", "prompt_field")
    try:
        loaded = datasets.load_from_disk(str(local_path(source)))
    except Exception as error:
        raise DataError(f"{source} is not a readable datasets folder: {first_line(error)}") from None
    return dataset_texts(loaded, source, asked)
