"""A text file, as one document."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from ....errors import DataError
from ....files.reading import local_path
from ..texts import SMALL, Text, TextFile
from .rows import refuse


def takes(source: str) -> bool:
    """Whether this is a file."""
    return local_path(source).is_file()


def read(source: str, split: str | None, text_field: str | None) -> Iterator[Text | TextFile]:
    """Reads the file.

    Raises:
        DataError: as :func:`text_of`, or it is empty.
    """
    refuse(source, "a text file", split=split, text_field=text_field)
    text = text_of(local_path(source))
    if isinstance(text, Text) and not text.text.strip():
        raise DataError(f"{source} is empty; give a file with text in it")
    yield text


def text_of(path: Path) -> Text | TextFile:
    """Reads a file that is text; one that holds texts in another form would be measured with its brackets and commas.

    A large file is not read here, but where it is asked for.

    Raises:
        DataError: it cannot be read, is not UTF-8, is compressed, or is a table; of a large one, as far as it is read.
    """
    kind = _NO_TEXT.get(path.suffix.lower())
    if kind:
        raise DataError(f"{path} is {kind}, or a text that should be called .txt")
    try:
        large = path.stat().st_size > SMALL
        text = TextFile(str(path), path) if large else decoded(str(path), path.read_bytes())
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
    if path.suffix.lower() == ".json" and _is_array(text):
        raise DataError(f"{path} is a JSON array; write it as .jsonl, one object per line")
    return text


def decoded(name: str, raw: bytes) -> Text:
    """Decodes UTF-8 text, with line ends of any kind.

    Raises:
        DataError: it is not UTF-8, or holds a zero byte.
    """
    if b"\0" in raw:
        raise DataError(f"{name} is not text: it has a zero byte at {raw.index(0)}; give UTF-8 text")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{name} is not UTF-8 text: byte {error.start} does not decode; convert it first") from None
    return Text(name, text.replace("\r\n", "\n").replace("\r", "\n"))


_TABLE = "a table; make it JSONL or parquet"
_COMPRESSED = "compressed; unpack it first"
_NO_TEXT = {
    **dict.fromkeys((".csv", ".tsv"), _TABLE),
    **dict.fromkeys((".gz", ".bz2", ".xz", ".zst", ".zip"), _COMPRESSED),
}


def _is_array(text: Text | TextFile) -> bool:
    """Whether a text is a JSON list of texts or rows; of a large one its beginning tells."""
    if isinstance(text, TextFile):
        return re.match(r'\s*\[\s*[{"]', next(text.reading(), "")) is not None
    if not text.text.lstrip().startswith("["):
        return False
    try:
        return all(isinstance(each, (dict, str)) for each in json.loads(text.text))
    except (ValueError, RecursionError):
        return False
