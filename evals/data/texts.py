"""Texts before tokenization."""

from __future__ import annotations

import io
import re
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, cast

from ...errors import DataError
from ...files import sha256

LARGEST = 2**30
"""The largest file of text, in bytes."""

_BLOCK = 2**16
"""The number of bytes in which a line start is looked for."""

JSON_LINES = (".jsonl", ".ndjson")
"""Extensions of JSON lines files."""

_NO_TEXT = {
    **dict.fromkeys((".csv", ".tsv"), "a table; make it JSONL or parquet"),
    **dict.fromkeys(JSON_LINES, "lines of JSON; give the file itself"),
    **dict.fromkeys((".bz2", ".xz", ".zip"), "compressed; unpack it first"),
}

_COMPRESSED = (".gz", ".zst")
"""Extensions of compressed files that are read as what they contain."""

_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
"""The first bytes of compressed files, with pyarrow's names of the compressions."""


class NoText(DataError):
    """The error for a file that is not plain text; folders skip such files."""


@dataclass(frozen=True)
class Text:
    """A document before tokenization; ``name`` is its origin."""

    name: str
    text: str

    def __post_init__(self) -> None:
        """Checks that UTF-8 can encode the whole text, even parts that are not read later.

        Raises:
            DataError: the text has a lone surrogate.
        """
        try:
            self.text.encode()
        except UnicodeEncodeError as error:
            at = error.start
            raise DataError(
                f"{self.name} has a lone surrogate at character {at}; it is not valid text; repair or remove it"
            ) from None

    @cached_property
    def encoded(self) -> bytes:
        """The text as UTF-8."""
        return self.text.encode()

    @cached_property
    def sha256(self) -> str:
        """The hash of the text's UTF-8 bytes."""
        return sha256(self.encoded)

    @property
    def size(self) -> int:
        """The number of the text's UTF-8 bytes."""
        return len(self.encoded)

    def start_at(self, offset: int) -> int:
        """Returns the byte of the first line start from ``offset`` on or, if it is far, of the next character."""
        if not offset:
            return 0
        line = self.encoded.find(b"\n", offset - 1, offset - 1 + _BLOCK)
        inside = (at for at, byte in enumerate(self.encoded[offset : offset + 4], offset) if byte & 0xC0 != 0x80)
        return next(inside, offset) if line < 0 else line + 1


def contents_suffix(path: Path) -> str:
    """Returns the extension of what a file contains, in lower case: ``.jsonl`` for ``a.jsonl.gz``."""
    suffix = path.suffix.lower()
    return Path(path.stem).suffix.lower() if suffix in _COMPRESSED else suffix


def opened(path: Path) -> BinaryIO:
    """Opens a file for reading; gzip and zstd, known by the first bytes of a file that is named as text, rows or
    compressed, are unpacked while it is read.

    Raises:
        OSError: the file cannot be read.
    """
    if path.suffix.lower() not in (*_COMPRESSED, *JSON_LINES, ".json", ".txt"):
        return path.open("rb")
    with path.open("rb") as file:
        start = file.read(4)
    compression = next((name for magic, name in _MAGIC.items() if start.startswith(magic)), None)
    if compression is None:
        return path.open("rb")
    import pyarrow

    return cast(BinaryIO, io.BufferedReader(pyarrow.input_stream(str(path), compression=compression)))


def starts_json(path: Path) -> str:
    """Returns "[" for a file with a JSON array of rows, "{" for one with lines of JSON objects, "{}" for one with a
    single object on one line, "{\\n}" for one with an object on several lines, and else ""."""
    suffix = contents_suffix(path)
    if suffix in JSON_LINES:
        return "{"
    if suffix != ".json":
        return ""
    with suppress(OSError), opened(path) as file:
        start = file.read(_BLOCK).decode("utf-8-sig", "ignore").strip()
        if re.match(r'\[\s*([\[{"]|\]$)', start):
            return "["
        if re.match(r"\{.*\}\s*\n\s*\{", start):
            return "{"
        if re.match(r"\{.*$", start):
            return "{}"
        if start.startswith("{"):
            return "{\n}"
    return ""


def text_of(path: Path, is_array: bool = False) -> Text:
    """Reads a text file.

    Structured formats raise an error, because their syntax would be measured as text.

    Args:
        is_array: whether the file is read as a JSON array.

    Raises:
        NoText: the file does not decode, is compressed, or has a structured format.
        DataError: the file cannot be read, or is longer than :data:`LARGEST`.
    """
    if kind := _NO_TEXT.get(contents_suffix(path)):
        raise NoText(f"{path} is {kind}, or rename it to .txt if it is plain text")
    try:
        with opened(path) as file:
            raw = file.read(LARGEST + 1)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
    if len(raw) > LARGEST:
        raise DataError(f"{path} is longer than {LARGEST:,} bytes; split it into several files")
    if not is_array and starts_json(path) in ("[", "{"):
        raise NoText(f"{path} has rows of JSON; give the file itself")
    return decoded(str(path), raw)


def decoded(name: str, raw: bytes) -> Text:
    """Decodes a text. Line ends of any kind become ``\n``, and a leading byte-order mark is removed.

    Raises:
        NoText: the bytes are not UTF-8, or contain a zero byte.
    """
    try:
        text = raw.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        why = f"{name} is not UTF-8 text: byte {error.start} does not decode; convert it (iconv)"
        raise NoText(why) from None
    if "\0" in text:
        zero = raw.index(b"\0")
        raise NoText(f"{name} is not text: it has a zero byte at {zero}; give UTF-8 text")
    return Text(name, text.replace("\r\n", "\n").replace("\r", "\n"))
