"""Documents and their tokenization.

Token ids contain no added special tokens; BOS is prepended once, when a document is fed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, cast

import numpy as np

from ...errors import DataError
from ...files import sha256
from ...output.formatting import first_line
from .texts import Text as Text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


MARGIN = 64
"""The number of tokens at the end of a part that the following text may change."""

_FAR = 2**11
"""The number of characters without white space that separate two parts of a text."""


@dataclass(frozen=True)
class Encoded:
    """The tokens of a text or of a part of a text.

    Attributes:
        ids: int64 [tokens].
        byte_ends: as in :class:`ropescale.evals.data.documents.Document`.
    """

    ids: np.ndarray
    byte_ends: np.ndarray | None

    def __len__(self) -> int:
        return len(self.ids)

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
        return Encoded(np.array(encoded["input_ids"], np.int64), ends)


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
    ends = np.fromiter((end for _, end in offsets), np.int64, len(offsets))
    # A token without characters (a dummy prefix) has the offsets (0, 0), so the maximum keeps the ends ascending.
    return byte_places(text, np.maximum.accumulate(ends))


def byte_places(text: str, ends: np.ndarray) -> np.ndarray:
    """Converts character positions in a text to UTF-8 byte positions, int64."""
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
        ends, scored = self.byte_ends, self.scored
        before = int(ends[start - 1]) if ends is not None and start else 0
        return replace(
            self,
            ids=self.ids[start:stop],
            byte_ends=None if ends is None else ends[start:stop] - before,
            scored=None if scored is None else scored[start:stop],
            offset=self.offset + before,
        )

    @property
    def ids_sha256(self) -> str:
        """The SHA-256 of the ids as little-endian int64, which depends on the tokenizer."""
        return sha256(np.asarray(self.ids, "<i8").tobytes())

    @property
    def sizes(self) -> np.ndarray:
        """The number of UTF-8 bytes that each token covers, int64; requires :attr:`byte_ends`."""
        return np.diff(self.byte_ends, prepend=0) if self.byte_ends is not None else np.zeros(0, np.int64)


def tokenize(
    texts: Iterable[Text | Document | str],
    tokenizer: PreTrainedTokenizerBase,
) -> list[Document]:
    """Encodes texts without adding special tokens, with byte offsets if the tokenizer is fast.

    Documents that are already tokens are returned unchanged.

    Raises:
        DataError: UTF-8 cannot encode a text, because it has a lone surrogate.
    """
    encoder = TextEncoder(tokenizer)
    given = (Text(f"document {number}", each) if isinstance(each, str) else each for number, each in enumerate(texts))
    return [encoded(each, encoder) for each in given]


def encoded(text: Text | Document, encoder: TextEncoder | None) -> Document:
    """Encodes a whole text. A document of tokens is returned unchanged and needs no encoder."""
    if isinstance(text, Document):
        return text
    tokens = cast(TextEncoder, encoder).whole(text.text)
    return Document(text.name, tokens.ids.tolist(), tokens.byte_ends, text.sha256)


def special_tokens(documents: Iterable[Document], tokenizer: PreTrainedTokenizerBase | None) -> int:
    """Counts special tokens in the documents, such as ``<|endoftext|>``, except the token for unknown text."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    special = {*getattr(tokenizer, "all_special_ids", []), *(i for i, token in added.items() if token.special)}
    wanted = np.array(sorted(special - {getattr(tokenizer, "unk_token_id", None)}), np.int64)
    # Chats and given ids contain special tokens intentionally.
    texts = (document.ids for document in documents if not document.kind)
    return sum(int(np.isin(np.asarray(ids, np.int64), wanted).sum()) for ids in texts)


def of_ids(name: str, ids: Sequence[int], kind: Kind = "") -> Document:
    """Returns a document of token ids, given as a list, an array or a tensor of whole numbers.

    Raises:
        DataError: the ids are not a list of whole numbers.
    """
    array = np.asarray(ids)
    if array.ndim != 1 or (array.size and not np.issubdtype(array.dtype, np.integer)):
        raise DataError(f"{name} is not a list of whole token ids; for texts, give tokenizer=")
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


def documents_sha256(documents: Iterable[Document]) -> str:
    """Returns the hash of the documents' hashes, in order."""
    return sha256(b"".join(bytes.fromhex(document.sha256) for document in documents))


def too_short(longest: tuple[str, int] | None, needed: int, instead: str = "shorter lengths") -> DataError:
    """Returns the error for documents that are all too short.

    Args:
        longest: the name and the number of tokens of the longest document.
        needed: the number of tokens that a document needs.
        instead: what the user can use instead.
    """
    if longest is None or not longest[1]:
        return DataError("every document is empty; give documents with text in them")
    return DataError(
        f"no document has the {needed:,} tokens needed; the longest, {longest[0]}, has {longest[1]:,}: "
        f"use {instead}, longer documents, or join them",
        "concat",
    )


def placed(
    document: Document, bos: str | int, tokenizer: PreTrainedTokenizerBase | None
) -> tuple[Document, int | None]:
    """Returns a document without its leading BOS, and the id of the BOS that every window gets; None for no BOS.

    With ``bos`` "auto", chats whose template writes no BOS get none, as in training.
    """
    found = bos_id(bos, tokenizer)
    begins = list(document.ids[:1]) == [found]
    if found is None or (document.kind == "chat" and len(document.ids) and not begins and bos == "auto"):
        return document, None
    return document.part(1, None) if begins and document.kind in ("ids", "chat") else document, found
