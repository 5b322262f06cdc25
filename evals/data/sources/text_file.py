"""A text file, as one document."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from pathlib import Path

from ....errors import DataError
from ....files import local_path
from ..texts import BLOCK, SMALL, Text, TextFile
from .read_options import ReadOptions


class NoText(DataError):
    """A file that is not text, or text in another form: a folder leaves it out."""


def takes(source: str) -> bool:
    """Whether this is a file."""
    return local_path(source).is_file()


def read(source: str, asked: ReadOptions) -> Iterator[Text | TextFile]:
    """Reads the file.

    Raises:
        DataError: as :func:`text_of`, or it is empty.
    """
    asked.only(source, "a text file", "encoding")
    text = text_of(local_path(source), asked.encoding)
    if isinstance(text, Text) and not text.text.strip():
        raise DataError(f"{source} is empty; give a file with text in it")
    yield text


def text_of(path: Path, encoding: str | None = None, rows: bool = True) -> Text | TextFile:
    """Reads a file that is text; one that holds texts in another form would be measured with its brackets and commas.

    A large file is not read here, but where it is asked for; unless it is in another encoding than UTF-8.

    Args:
        encoding: UTF-8 when None.
        rows: whether lines of JSON are wanted.

    Raises:
        NoText: it does not decode, is compressed, or is a table; of a large one, as far as it is read.
        DataError: it cannot be read.
    """
    suffix = path.suffix.lower()
    kind = _NO_TEXT.get(suffix) or (_ROWS if suffix in _OF_ROWS and not rows else None)
    if kind:
        raise NoText(f"{path} is {kind}, or a text that should be called .txt")
    try:
        large = path.stat().st_size > SMALL and encoding is None
        if large and suffix not in _OF_ROWS:  # its beginning must be text; a row is refused where it is reached
            with open(path, "rb") as file:
                decoded(str(path), file.read(BLOCK), whole=False)
        text = TextFile(str(path), path) if large else decoded(str(path), path.read_bytes(), encoding)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
    if suffix == ".json" and _is_array(text):
        raise NoText(f"{path} is a JSON array; write it as .jsonl, one object per line")
    return text


def decoded(name: str, raw: bytes, encoding: str | None = None, whole: bool = True) -> Text:
    """Decodes text, with line ends of any kind.

    Args:
        encoding: UTF-8, with or without a byte-order mark, when None.
        whole: whether the bytes do not end inside a character.

    Raises:
        NoText: it does not decode, or holds a zero byte.
    """
    if encoding is None and b"\0" in raw:
        raise NoText(
            f"{name} is not text: it has a zero byte at {raw.index(0)}; give UTF-8 text, or name its encoding",
            "encoding",
        )
    try:
        text = codecs.getincrementaldecoder(encoding or "utf-8-sig")().decode(raw, whole)
    except UnicodeError as error:
        at = f"byte {error.start} does not decode" if isinstance(error, UnicodeDecodeError) else f"{error}"
        other = "name another encoding" if encoding else "name its encoding, like latin-1"
        raise NoText(f"{name} is not {encoding or 'UTF-8'} text: {at}; {other}", "encoding") from None
    if "\0" in text:
        raise NoText(f"{name} is not {encoding} text: it has a zero character; name another encoding", "encoding")
    return Text(name, text.replace("\r\n", "\n").replace("\r", "\n"))


_TABLE = "a table; make it JSONL or parquet"
_ROWS = "lines of JSON; give the file itself"
_OF_ROWS = (".jsonl", ".ndjson")
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
