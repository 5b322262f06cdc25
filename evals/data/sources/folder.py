"""A folder of text files, each one a document, in order of path."""

from __future__ import annotations

from collections.abc import Iterator

from ....errors import DataError
from ....files.reading import local_path
from ..texts import Text, TextFile
from .rows import refuse
from .text_file import text_of


def takes(source: str) -> bool:
    """Whether this is a folder."""
    return bool(source) and local_path(source).is_dir()


def read(source: str, split: str | None, text_field: str | None) -> Iterator[Text | TextFile]:
    """Reads all files but hidden ones, those in folders below included.

    Raises:
        DataError: there is none, or as :func:`ropescale.evals.data.sources.text_file.text_of`.
    """
    refuse(source, "a folder of text files", split=split, text_field=text_field)
    root = local_path(source)
    visible = (path for path in root.rglob("*") if not any(part[0] == "." for part in path.relative_to(root).parts))
    files = sorted(path for path in visible if path.is_file())
    if not files:
        raise DataError(f"no files in {source}; give a folder of text files (hidden ones are not read)")
    yield from map(text_of, files)
