"""Texts before tokenization, in memory or in a file that is read on demand."""

from __future__ import annotations

import codecs
import hashlib
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ...errors import DataError

SMALL = 4 * 2**20
"""The size in bytes up to which a file is read completely, to validate and hash its content."""

BLOCK = 2**16
"""Bytes per read of a file."""


JSON_LINES = (".jsonl", ".ndjson")
"""Extensions of JSON lines files."""

_NO_TEXT = {
    **dict.fromkeys((".csv", ".tsv"), "a table; make it JSONL or parquet"),
    **dict.fromkeys(JSON_LINES, "lines of JSON; give the file itself"),
    **dict.fromkeys((".gz", ".bz2", ".xz", ".zst", ".zip"), "compressed; unpack it first"),
}


class NoText(DataError):
    """The error for a file that is not plain text; folders skip such files."""


@contextmanager
def _readable(name: object) -> Iterator[None]:
    """Converts an ``OSError`` inside the block to an error that names the text.

    Raises:
        DataError: the text cannot be read.
    """
    try:
        yield
    except OSError as error:
        raise DataError(f"{name} cannot be read: {error.strerror or error}") from None


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

    @property
    def size(self) -> int:
        """The number of the text's UTF-8 bytes."""
        return len(self.encoded)

    def reading(self, offset: int = 0) -> Reading:
        """Reads from a byte offset; see :class:`Reading`."""
        return Reading(self.name, io.BytesIO(self.encoded), offset, plain=True)


@dataclass(frozen=True)
class TextFile:
    """A document in a UTF-8 file, which is read in pieces on demand.

    Line ends of any kind become ``\\n``, and a leading byte-order mark is removed.
    """

    name: str
    path: Path

    @property
    def text(self) -> str:
        """The whole text, in memory."""
        return "".join(self.reading())

    @cached_property
    def size(self) -> int:
        """The size of the file in bytes."""
        return self.path.stat().st_size

    @cached_property
    def stamp(self) -> str:
        """The file's size and modification time (ns), which identify the text together with the bytes read."""
        found = self.path.stat()
        return f"{found.st_size} {found.st_mtime_ns}"

    @cached_property
    def read_through(self) -> Reading:
        """A completed reading, which has the full text's hash and line ends."""
        with self.reading() as reading:
            for _ in reading:
                pass
        return reading

    def reading(self, offset: int = 0) -> Reading:
        """Reads from a byte offset; see :class:`Reading`."""
        with _readable(self.path):
            return Reading(self.name, open(self.path, "rb"), offset)


class Reading:
    """An iterator over a text from an offset on, in pieces of some ten thousand characters; usable once.

    Args:
        name: the text's name, for errors.
        file: the file that contains the text's bytes.
        offset: the byte to start from. Unless it is 0, reading starts at the next line, or, if no line starts within
            :data:`BLOCK` bytes, at the next character.
        plain: whether to keep line ends and a leading byte-order mark unchanged.

    Attributes:
        start: the position of the first byte that is read.
        whole: whether the text was read completely.

    Raises:
        NoText: the bytes are not UTF-8 text; the message has the position of the first invalid byte.
    """

    def __init__(self, name: str, file: BinaryIO, offset: int = 0, plain: bool = False) -> None:
        self.name, self._file = name, file
        decoder = codecs.getincrementaldecoder("utf-8")()
        self._decoder = decoder if plain else io.IncrementalNewlineDecoder(decoder, translate=True)
        self.start = self._at = file.seek(0) if plain and not offset else self._begin(offset)
        self.whole = False
        self._digest, self._plain = hashlib.sha256(), plain
        self._pairs: list[np.ndarray] = []  # for each "\r\n", the number of bytes from the start to its end
        self._open_pair = False  # whether the last byte that was read is a "\r", which may begin a "\r\n"

    def __enter__(self) -> Reading:
        return self

    def __exit__(self, *_: object) -> None:
        """Closes the file; the hash and the positions of the part that was read remain available."""
        self._file.close()

    def __iter__(self) -> Iterator[str]:
        """Yields the text in blocks.

        The text before an invalid byte is yielded before the error is raised, because this text may suffice.
        """
        raw, wrong = b" ", ""
        while raw and not wrong:
            raw = self._read(BLOCK)
            zero = -1 if self._plain else raw.find(b"\0")
            if zero >= 0:
                raw, at = raw[:zero], self._at + zero
                wrong = f"{self.name} is not text: it has a zero byte at {at}; give UTF-8 text"
            try:
                piece = self._decoder.decode(raw, final=not raw and not wrong)
            except UnicodeDecodeError as error:
                at, piece = (
                    self._at + error.start - (len(error.object) - len(raw)),
                    error.object[: error.start].decode(),
                )
                wrong = f"{self.name} is not UTF-8 text: byte {at} does not decode; convert it (iconv)"
            if not self._plain:
                self._digest.update(piece.encode())
                if b"\r" in raw or self._open_pair:
                    codes = np.frombuffer((b"\r" if self._open_pair else b" ") + raw, np.uint8)
                    ends = np.flatnonzero((codes[:-1] == ord("\r")) & (codes[1:] == ord("\n"))) + 1
                    self._pairs.append(ends + (self._at - self.start))
                    self._open_pair = bool(codes[-1] == ord("\r"))
                self.whole = not raw and not wrong and self.start <= len(codecs.BOM_UTF8)
            self._at += len(raw)
            if piece:
                yield piece
        self._file.close()
        if wrong:
            raise NoText(wrong)

    @property
    def sha256(self) -> str:
        """The hash of the text that was read so far, as UTF-8."""
        return self._digest.hexdigest()

    def taken(self, size: int) -> int:
        """Returns the number of bytes that the first ``size`` bytes of text take in the file.

        A line end of two bytes in the file is one byte of text.
        """
        pairs = self._line_ends
        return size + int(np.searchsorted(pairs - np.arange(1, len(pairs) + 1), size, side="right"))

    def before(self, place: int) -> int:
        """Returns the number of bytes of text between the start and a byte of the file."""
        place -= self.start
        return place - int(np.searchsorted(self._line_ends, place, side="right"))

    @property
    def _line_ends(self) -> np.ndarray:
        return np.concatenate([np.empty(0, np.int64), *self._pairs])

    def _begin(self, offset: int) -> int:
        """Moves the file to the first byte to read, and returns that byte's position."""
        if offset == 0:
            return self._file.seek(len(codecs.BOM_UTF8) if self._read(3) == codecs.BOM_UTF8 else 0)
        self._file.seek(offset - 1)
        raw = self._read(BLOCK)
        line = raw.find(b"\n")
        if line < 0:  # a text of one line: skip the inner bytes of a character
            line = next((n for n, byte in enumerate(raw[1:]) if byte & 0xC0 != 0x80), 0)
        return self._file.seek(offset + line)

    def _read(self, count: int) -> bytes:
        with _readable(self.name):
            return self._file.read(count)


def text_of(path: Path) -> Text | TextFile:
    """Reads a text file.

    Structured formats raise an error, because their syntax would be measured as text. A large UTF-8 file is read on
    demand, after its start has been checked; later invalid bytes raise an error when they are reached.

    Raises:
        NoText: the file does not decode, is compressed, or has a structured format.
        DataError: the file cannot be read.
    """
    suffix = path.suffix.lower()
    if kind := _NO_TEXT.get(suffix):
        raise NoText(f"{path} is {kind}, or rename it to .txt if it is plain text")
    text: Text | TextFile = TextFile(str(path), path)
    with _readable(path):
        if text.size <= SMALL:
            text = decoded(str(path), path.read_bytes())
    with text.reading() as reading:
        # A character that is cut off at the end of the first block is only decoded with the second block.
        begin = "".join(islice(reading, 2))
    if suffix == ".json" and re.match(r'\s*\[\s*[{"]', begin):
        raise NoText(f"{path} is a JSON array; write it as .jsonl, one object per line")
    return text


def decoded(name: str, raw: bytes) -> Text:
    """Decodes a full text. Line ends of any kind become ``\\n``.

    Raises:
        NoText: the bytes are not UTF-8, or contain a zero byte.
    """
    return Text(name, "".join(Reading(name, io.BytesIO(raw))))
