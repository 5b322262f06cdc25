"""Tokenizes whole texts, and the first tokens of texts without the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import DataError
from ...output.formatting import first_line

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

    def whole(self, text: str) -> Encoded:
        """Encodes a full text."""
        return self._tokens(text)

    def first(self, text: bytes, count: int, start: int = 0) -> Encoded:
        """Returns the first ``count`` tokens of a UTF-8 text from a byte on, or all if it has fewer.

        A fast tokenizer gets little more text than needed. The tokens are taken as independent of the text after it if
        :data:`MARGIN` tokens follow them, with white space or a long text between.
        """
        size = 4096 + 6 * count if self.fast else len(text)
        while True:
            part = text[start : start + size]
            found = self._tokens(part.decode(errors="ignore"))  # the last character may be cut
            if len(part) < size or _settles(part, found, count):
                return found.part(0, count)
            size *= 2

    def _tokens(self, text: str) -> Encoded:
        encoded = self._encoded(text, offsets=self.fast)
        ends = byte_ends_of(text, encoded["offset_mapping"]) if self.fast else None
        return Encoded(np.array(encoded["input_ids"], np.int64), ends)

    def _encoded(self, text: str, offsets: bool = False) -> Any:
        # verbose=False: a document may exceed model_max_length, which would cause a warning.
        try:
            return self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=offsets, verbose=False)
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # tokenizers' own, for a pattern that never ends
                raise
            reason = first_line(error)
        raise DataError(f"the tokenizer cannot read this text: {reason}; correct the patterns in its tokenizer.json")


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
