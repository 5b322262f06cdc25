"""Documents: texts, as they are read from files, and their tokens.

Token ids contain no added special tokens; BOS is prepended once, when a document is fed.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal, cast

import numpy as np

from ...errors import DataError
from ...files import sha256
from ...output.formatting import first_line

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


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

EXPANDS = 100
"""The most times that a file may be larger when unpacked; zstd shrinks text to a third or a tenth."""


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
    file = path.open("rb")
    if path.suffix.lower() in (*_COMPRESSED, *JSON_LINES, ".json", ".txt"):
        start = file.peek()
        for magic, compression in _MAGIC.items():
            if start.startswith(magic):
                import pyarrow

                return cast(BinaryIO, io.BufferedReader(pyarrow.input_stream(file, compression=compression)))
    return file


def most_unpacked(path: Path) -> int:
    """Returns the largest size of a file's content, unpacked; a small file may expand further."""
    return max(2**26, EXPANDS * path.stat().st_size)


_JSON = {"[": r'\[\s*([\[{"]|\]$)', "{": r"\{.*\}[^\S\n]*\n\s*\{", "{}": r"\{.*$", "{\n}": r"\{"}
"""Patterns of a file's start, by the results of :func:`starts_json`, in linear time."""


def starts_json(path: Path) -> str:
    """Returns "[" for a file with a JSON array of rows, "{" for one with lines of JSON objects, "{}" for one with a
    single object on one line, "{\\n}" for one with an object on several lines, and else ""."""
    suffix = contents_suffix(path)
    if suffix in JSON_LINES:
        return "{"
    if suffix == ".json":
        with suppress(OSError), opened(path) as file:
            start = file.read(_BLOCK).decode("utf-8-sig", "ignore").strip()
            return next((kind for kind, pattern in _JSON.items() if re.match(pattern, start)), "")
    return ""


def text_of(path: Path, is_array: bool = False) -> Text:
    """Reads a text file.

    Structured formats raise an error, because their syntax would be measured as text.

    Args:
        is_array: whether the file is read as a JSON array.

    Raises:
        NoText: the file does not decode, is compressed, or has a structured format.
        DataError: the file cannot be read, or is longer than :data:`LARGEST` or :func:`most_unpacked`.
    """
    if kind := _NO_TEXT.get(contents_suffix(path)):
        raise NoText(f"{path} is {kind}, or rename it to .txt if it is plain text")
    try:
        with opened(path) as file:
            most = min(LARGEST, most_unpacked(path))
            raw = file.read(most + 1)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
    if len(raw) > most:
        raise DataError(f"{path} is longer than {most:,} bytes; split it into several files")
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
        raise NoText(f"{name} is not UTF-8 text: byte {error.start} does not decode; convert it (iconv)") from None
    if "\0" in text:
        zero = raw.index(b"\0")
        raise NoText(f"{name} is not text: it has a zero byte at {zero}; give UTF-8 text")
    return Text(name, text.replace("\r\n", "\n").replace("\r", "\n"))


# --- Their tokens ---


MARGIN = 64
"""The number of tokens at the end of a part that the following text may change."""

_FAR = 2**11
"""The number of characters without white space that separate two parts of a text."""


_NUMBERS: dict[int, int] = {}
"""The one object of each token id."""


@dataclass(frozen=True)
class Encoded:
    """The tokens of a text or of a part of a text.

    Attributes:
        ids: the tokens.
        byte_ends: as in :class:`ropescale.evals.data.documents.Document`.
    """

    ids: list[int]
    byte_ends: np.ndarray | None

    def __len__(self) -> int:
        return len(self.ids)

    def listed(self) -> list[int]:
        """Returns the ids as a list in which equal numbers are one object: 8 bytes per token instead of 40."""
        return list(map(_NUMBERS.setdefault, self.ids, self.ids))

    def part(self, start: int, stop: int | None = None) -> Encoded:
        """Returns a slice of the tokens."""
        ends = self.byte_ends
        return Encoded(self.ids[start:stop], None if ends is None else ends[start:stop])


class TextEncoder:
    """A tokenizer that encodes texts without adding special tokens."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self.fast = bool(getattr(tokenizer, "is_fast", False))

    def first(self, text: bytes, count: int, start: int = 0) -> Encoded:
        """Returns the first ``count`` tokens of a UTF-8 text from a byte on, or all if it has fewer.

        A fast tokenizer gets little more text than needed. The tokens are taken as independent of the text after it if
        :data:`MARGIN` tokens follow them, with white space or a long text between.
        """
        size = 4096 + 6 * count if self.fast else len(text)
        while True:
            part = text[start : start + size]
            found = self.whole(part.decode(errors="ignore"))  # the last character may be cut
            if len(part) < size or _settles(part, found, count):
                return found.part(0, count)
            size *= 2

    def whole(self, text: str) -> Encoded:
        """Encodes a full text.

        Raises:
            DataError: the tokenizer fails.
        """
        try:  # verbose=False: a document may exceed model_max_length, which would cause a warning.
            encoded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=self.fast, verbose=False)
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # tokenizers' own, for a pattern that never ends
                raise
            reason = first_line(error)
            raise DataError(
                f"the tokenizer cannot read this text: {reason}; correct the patterns in its tokenizer.json"
            ) from None
        ends = byte_ends_of(text, encoded["offset_mapping"]) if self.fast else None
        return Encoded(encoded["input_ids"], ends)


def _settles(part: bytes, found: Encoded, count: int) -> bool:
    ends = found.byte_ends
    if ends is None or len(ends) < count + MARGIN:
        return False
    behind = part[ends[count - 1] : ends[-MARGIN // 2]].decode(errors="ignore")
    return len(behind) > _FAR or any(map(str.isspace, behind))


def byte_ends_of(text: str, offsets: Sequence[tuple[int, int]]) -> np.ndarray:
    """Returns the number of UTF-8 bytes before each token's end.

    For a token that ends inside a character, this includes the whole character.
    """
    # A token without characters (a dummy prefix) has the offsets (0, 0), so the maximum keeps the ends ascending.
    ends = np.maximum.accumulate(np.fromiter(map(itemgetter(1), offsets), np.int64, len(offsets)))
    if text.isascii():
        return ends
    points = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    sizes = 1 + (points >= 0x80).astype(np.int64) + (points >= 0x800) + (points >= 0x10000)
    return np.concatenate([[0], np.cumsum(sizes)])[ends]


Kind = Literal["", "ids", "chat", "prompt"]


@dataclass(frozen=True)
class Document:
    """A document as token ids, without BOS.

    Attributes:
        name: the origin of the document.
        ids: the tokens.
        byte_ends: per token, the number of the text's UTF-8 bytes up to the token's end, int64; None if unknown (for
            ids without a text, or a tokenizer without offsets).
        sha256: the hash of the text's UTF-8 bytes, or of the ids as little-endian int64; for a window, the hash of the
            whole text.
        kind: "ids" or "chat" if the source determines all fed tokens, including BOS; "prompt" for a prompt with a
            scored answer; else empty.
        scored: a mask of the scored tokens, bool [tokens]; None if all are scored.
        offset: for a window, the number of the text's bytes before the window.
        source: the document's source, if there are several sources.
    """

    name: str
    ids: Sequence[int]
    byte_ends: np.ndarray | None
    sha256: str
    kind: Kind = ""
    scored: np.ndarray | None = None
    offset: int = 0
    source: str = ""

    def part(self, start: int, stop: int | None) -> Document:
        """Returns the window of the document's tokens ``[start, stop)``."""
        ends = self.byte_ends
        scored = self.scored
        before = int(ends[start - 1]) if ends is not None and start else 0
        return replace(
            self,
            ids=self.ids[start:stop],
            byte_ends=None if ends is None else ends[start:stop] - before,
            scored=None if scored is None else scored[start:stop],
            offset=self.offset + before,
        )

    @property
    def sizes(self) -> np.ndarray:
        """The number of UTF-8 bytes that each token covers, int64; requires :attr:`byte_ends`."""
        if self.byte_ends is None:
            return np.zeros(0, np.int64)
        sizes = self.byte_ends.copy()
        sizes[1:] -= self.byte_ends[:-1]
        return sizes

    @property
    def size(self) -> int:
        """The number of UTF-8 bytes that all tokens cover; requires :attr:`byte_ends`."""
        return int(self.byte_ends[-1]) if self.byte_ends is not None and len(self.byte_ends) else 0


def tokenize(texts: Iterable[Text | Document | str], tokenizer: PreTrainedTokenizerBase) -> list[Document]:
    """Encodes texts without adding special tokens, with byte offsets if the tokenizer is fast.

    Documents that are already tokens are returned unchanged.

    Raises:
        DataError: UTF-8 cannot encode a text, because it has a lone surrogate.
    """
    encoder = TextEncoder(tokenizer)
    documents = []
    for number, each in enumerate(texts):
        text = Text(f"document {number}", each) if isinstance(each, str) else each
        documents.append(encoded(text, encoder))
    return documents


def encoded(text: Text | Document, encoder: TextEncoder | None) -> Document:
    """Encodes a whole text. A document of tokens is returned unchanged and needs no encoder."""
    if isinstance(text, Document):
        return text
    tokens = cast(TextEncoder, encoder).whole(text.text)
    return Document(text.name, tokens.listed(), tokens.byte_ends, text.sha256)


def special_tokens(documents: Iterable[Document], tokenizer: PreTrainedTokenizerBase | None) -> int:
    """Counts special tokens in the documents, such as ``<|endoftext|>``, except the token for unknown text."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    special = {*getattr(tokenizer, "all_special_ids", []), *(i for i, token in added.items() if token.special)}
    special -= {getattr(tokenizer, "unk_token_id", None)}
    # Chats and given ids contain special tokens intentionally.
    texts = [document.ids for document in documents if not document.kind]
    return sum(sum(map(special.__contains__, ids)) for ids in texts)


def of_ids(name: str, ids: Sequence[int], kind: Kind = "") -> Document:
    """Returns a document of token ids, given as a list, an array or a tensor of whole numbers.

    Raises:
        DataError: the ids are not a list of whole numbers.
    """
    array = np.asarray(ids)
    if array.ndim != 1 or (array.size and not np.issubdtype(array.dtype, np.integer)):
        raise DataError(
            f"{name} is not a list of whole token ids, a text, a chat or a Path; for texts, give tokenizer="
        )
    array = array.astype(np.int64)
    return Document(name, array.tolist(), None, sha256(array.astype("<i8").tobytes()), kind)


def bos_id(bos: str | int, tokenizer: PreTrainedTokenizerBase | None) -> int | None:
    """Returns the id to prepend to every document, or None.

    Args:
        bos: "auto" (the tokenizer's BOS token, if any), "yes" (the tokenizer's BOS token, which must exist), "no", or a
            token id.

    Raises:
        DataError: ``bos`` is "yes" and the tokenizer has no BOS token, or ``bos`` has another value.
    """
    if isinstance(bos, int) and not isinstance(bos, bool):
        return bos
    if isinstance(bos, str) and bos.isdecimal() and len(bos) < 20:
        return int(bos)
    if bos not in ("auto", "yes", "no"):
        raise DataError(f"bos must be auto, yes, no or a token id, not {bos!r}")
    found = None if bos == "no" else getattr(tokenizer, "bos_token_id", None)
    if bos == "yes" and found is None:
        raise DataError("bos=yes needs a BOS token, and the tokenizer has none; give its id or use bos=no")
    return found


def check_ids(documents: Iterable[Document], vocabulary: int, bos: int | None = None) -> None:
    """Checks, before the run starts, that all ids are in the model's vocabulary.

    Raises:
        DataError: an id is outside the vocabulary; the message names the document, the position and the id.
    """
    if bos is not None and not 0 <= bos < vocabulary:
        raise DataError(f"bos id {bos} is outside the model's vocabulary of {vocabulary}")
    for document in documents:
        ids = np.asarray(document.ids)
        wrong = np.flatnonzero((ids < 0) | (ids >= vocabulary))
        if wrong.size:
            whose = (
                "these ids are another tokenizer's" if document.kind == "ids" else "the tokenizer is another model's"
            )
            raise DataError(
                f"{document.name} has token id {ids[wrong[0]]} at position {wrong[0]}, outside the model's vocabulary "
                f"of {vocabulary}; {whose}"
            )


def check_scored(documents: Sequence[Document], stops: Mapping[int, int | None]) -> None:
    """Checks that some document has a token to score at each length.

    Args:
        stops: by length, the number of fed tokens; None for the full document.

    Raises:
        DataError: no document has a token to score; the message names the first such length.
    """
    for length, stop in stops.items():
        scored = (each.scored is None or not len(each.ids) or each.scored[:stop].any() for each in documents)
        if documents and not any(scored):
            is_prompt = documents[0].kind == "prompt"
            which = "prompt has a token of its answer" if is_prompt else "chat has a token of the assistant"
            raise DataError(f"no {which} within its first {length:,} positions; use longer lengths", "lengths")


def too_short(longest: tuple[str, int] | None, needed: int, instead: str = "shorter lengths") -> DataError:
    """Returns the error for documents that are all too short.

    Args:
        longest: the name and the number of tokens of the longest document.
        needed: the number of tokens that a document needs.
        instead: what the user can use instead.
    """
    if longest is None:
        return DataError("there is no document; give at least one")
    if not longest[1]:
        return DataError("every document is empty; give documents with text in them")
    return DataError(
        f"no document has the {needed:,} tokens needed; the longest, {longest[0]}, has {longest[1]:,}: "
        f"use {instead}, longer documents, or join them",
        "concat",
    )


def placed(
    document: Document | Text, bos: str | int, tokenizer: PreTrainedTokenizerBase | None
) -> tuple[Document | Text, int | None]:
    """Returns a document without its leading BOS, and the id of the BOS that every window gets; None for no BOS.

    With ``bos`` "auto", chats whose template writes no BOS get none, as in training.
    """
    found = bos_id(bos, tokenizer)
    if isinstance(document, Text):
        return document, found
    begins = list(document.ids[:1]) == [found]
    if found is None or (document.kind == "chat" and len(document.ids) and not begins and bos == "auto"):
        return document, None
    return document.part(1, None) if begins and document.kind in ("ids", "chat") else document, found
