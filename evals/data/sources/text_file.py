"""A text file or standard input (``-``) as one document."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from ....errors import DataError
from ....files import local_path
from ..texts import SMALL, NoText, Reading, Text, TextFile
from .base import ReadOptions

JSON_LINES = (".jsonl", ".ndjson")
"""Extensions of JSON lines files."""

_TABLE = "a table; make it JSONL or parquet"
_COMPRESSED = "compressed; unpack it first"
_NO_TEXT = {
    **dict.fromkeys((".csv", ".tsv"), _TABLE),
    **dict.fromkeys((".gz", ".bz2", ".xz", ".zst", ".zip"), _COMPRESSED),
}


def takes(source: str) -> bool:
    """Whether this is a file, or standard input."""
    return source == "-" or local_path(source).is_file()


def read(source: str, asked: ReadOptions) -> Iterator[Text | TextFile]:
    """Reads the file.

    Raises:
        DataError: as for :func:`text_of`, or the file is empty.
    """
    if source == "-":
        asked.only("standard input", "plain text", "encoding")
        yield _decoded("standard input", sys.stdin.buffer.read(), asked.encoding)
        return
    asked.only(source, "a text file", "encoding")
    text = text_of(local_path(source), asked.encoding)
    if isinstance(text, Text) and not text.text.strip():
        raise DataError(f"{source} is empty; give a file with text in it")
    yield text


def text_of(path: Path, encoding: str | None = None, rows: bool = True) -> Text | TextFile:
    """Reads a text file; refuses structured formats, whose syntax would be measured as text.

    A large UTF-8 file is read on demand. Its start must be text; later invalid bytes are refused when they are reached.

    Args:
        encoding: Default: UTF-8.
        rows: whether the file has JSON lines.

    Raises:
        NoText: it does not decode (checked at the start of a large file), is compressed, or is a table.
        DataError: it cannot be read.
    """
    suffix = path.suffix.lower()
    kind = "lines of JSON; give the file itself" if suffix in JSON_LINES and not rows else _NO_TEXT.get(suffix)
    if kind:
        raise NoText(f"{path} is {kind}, or a text that should be called .txt")
    text: Text | TextFile = TextFile(str(path), path)
    try:
        if encoding is not None or text.size <= SMALL:
            text = _decoded(str(path), path.read_bytes(), encoding)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
    if suffix not in JSON_LINES:
        with text.reading() as reading:
            # An invalid byte at the end of the first block is detected in the second.
            begin = "".join(islice(reading, 2))
        if suffix == ".json" and re.match(r'\s*\[\s*[{"]', begin):
            raise NoText(f"{path} is a JSON array; write it as .jsonl, one object per line")
    return text


def _decoded(name: str, raw: bytes, encoding: str | None) -> Text:
    """Decodes a full text, with line ends of any kind.

    Raises:
        NoText: it does not decode, or holds a zero byte.
    """
    if encoding is None:
        return Text(name, "".join(Reading(name, io.BytesIO(raw))))
    try:
        text = raw.decode(encoding)
    except UnicodeError as error:
        at = f"byte {error.start} does not decode" if isinstance(error, UnicodeDecodeError) else f"{error}"
        raise NoText(f"{name} is not {encoding} text: {at}; name another encoding", "encoding") from None
    if "\0" in text:
        raise NoText(f"{name} is not {encoding} text: it has a zero character; name another encoding", "encoding")
    return Text(name, text.replace("\r\n", "\n").replace("\r", "\n"))
