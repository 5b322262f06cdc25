"""Tokenizes a text in pieces, with the same ids as tokenizing the whole text at once.

Two neighbouring pieces overlap, and are joined inside the overlap at a boundary with the same tokens at the same places
in both pieces, :data:`SAME` on either side of the joint. For BPE this proves that the joint is correct. A merge across
a boundary that neither piece merges would first need a different neighbour, but the nearest tokens on both sides are
the same in both pieces. So in the whole text, no merge can cross a boundary of the left piece before the joint, or of
the right piece after the joint. The same is true within each word for a tokenizer that splits at words first. Unigram's
best path might shift as a whole, so there the joint must also be directly before a word, at a boundary that no token of
the vocabulary covers. Pieces without such a joint are merged into a longer piece, up to the full text.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PIECE = 2**16
"""The most characters per piece; tokenization needs up to 250 bytes of memory per character."""

OVERLAP = 2**11
"""The overlap of two pieces in characters."""

SAME = 16
"""The number of tokens that must be equal on each side of a joint."""

MARGIN = 64
"""The number of tokens at the end of a piece that the following text may change."""

_WORD = "\u2581"
"""The character that SentencePiece writes for a space, in front of a word."""


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


@dataclass(frozen=True)
class _Piece:
    """A tokenized piece of text.

    Attributes:
        text: the piece's text.
        ids: int64 [tokens].
        ends: per token, the number of the piece's characters up to the token's end.
        begun: the number of tokens at the start that the previous piece has already provided.
    """

    text: str
    ids: np.ndarray
    ends: np.ndarray
    begun: int = 0


class TextEncoder:
    """A tokenizer that encodes texts in pieces, without adding special tokens.

    Args:
        split_special_tokens: whether to encode a special token's name in the text as ordinary text.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, split_special_tokens: bool = False) -> None:
        self.tokenizer = tokenizer
        self.fast = bool(getattr(tokenizer, "is_fast", False))
        self._how: dict[str, Any] = {"split_special_tokens": True} if split_special_tokens else {}

    def whole(self, reading: Iterable[str]) -> Encoded:
        """Encodes a full text."""
        return joined(list(self.stream(reading)))

    def first(self, reading: Iterable[str], count: int) -> Encoded:
        """Returns the first ``count`` tokens of a text, or all if it has fewer; reads little more text than needed."""
        return joined(list(self.stream(reading, count))).part(0, count)

    def stream(self, reading: Iterable[str], count: int | None = None) -> Iterator[Encoded]:
        """Yields the tokens of a text in pieces; concatenated, they equal the tokens of the full text.

        Args:
            count: stop after at least this many tokens.
        """
        if not self.fast or not self._joints_known:
            text = "".join(reading)
            if self.fast:
                yield self._settled(piece := self._piece(text), len(piece.ids), 0)
            else:
                yield Encoded(np.array(self._encoded(text)["input_ids"], np.int64), None)
            return
        texts, before = _pieces(reading), 0  # the number of the text's bytes before the left piece
        left, lacking = self._piece(next(texts, "")), math.inf if count is None else count
        for more in texts:
            if lacking <= 0 or _settles(left, left.begun + lacking):
                break
            joint = self._joined(left, more)
            if joint is None:  # both pieces become one
                whole = self._piece(left.text + more)
                begun = int(np.searchsorted(whole.ends, left.ends[left.begun - 1], "right")) if left.begun else 0
                left = _Piece(whole.text, whole.ids, whole.ends, begun)
                continue
            stop, right, start = joint
            yield self._settled(left, stop, before)
            lacking -= stop - left.begun
            before += len(left.text[:start].encode())
            left = right
        yield self._settled(left, len(left.ids), before)

    def _joined(self, left: _Piece, more: str) -> tuple[int, _Piece, int] | None:
        """Tokenizes the end of a piece together with the following text, and looks for a joint.

        Returns:
            The number of tokens of ``left`` before the joint, the next piece, and the character of ``left`` at which
            the next piece starts; None if there is no joint.
        """
        place = max(0, len(left.text) - OVERLAP)
        line, space = (left.text.rfind(blank, max(0, place - OVERLAP // 2), place) for blank in "\n ")
        start = line + 1 if line >= 0 else max(space, 0) or place  # the start of a line, or else of a word
        right = self._piece(left.text[start:] + more)
        for end in np.unique(right.ends[SAME:]):
            i = int(np.searchsorted(left.ends, end + start, "right"))
            j = int(np.searchsorted(right.ends, end, "right"))
            if i > len(left.ids) - MARGIN - SAME:
                break
            if i < left.begun + SAME or j < SAME:
                continue
            mine, theirs = slice(i - SAME, i + SAME), slice(j - SAME, j + SAME)
            if (
                np.array_equal(left.ids[mine], right.ids[theirs])
                and np.array_equal(left.ends[mine], right.ends[theirs] + start)
                and self._is_certain(left.ids[i - 1], left.ids[i])
            ):
                return i, _Piece(right.text, right.ids, right.ends, j), start
        return None

    def _settled(self, piece: _Piece, stop: int, before: int) -> Encoded:
        places = byte_places(piece.text, piece.ends[:stop])[piece.begun :] + before
        return Encoded(piece.ids[piece.begun : stop], places)

    def _piece(self, text: str) -> _Piece:
        encoded = self._encoded(text, offsets=True)
        return _Piece(text, np.array(encoded["input_ids"], np.int64), _ends(encoded["offset_mapping"]))

    def _encoded(self, text: str, offsets: bool = False) -> Any:
        # verbose=False: a document may exceed model_max_length, which would cause a warning.
        return self.tokenizer(
            text, add_special_tokens=False, return_offsets_mapping=offsets, verbose=False, **self._how
        )

    # --- Unigram ---

    @cached_property
    def _unigram(self) -> bool:
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        return type(getattr(backend, "model", None)).__name__ == "Unigram"

    @cached_property
    def _joints_known(self) -> bool:
        """Whether joints can be found: no token of a Unigram tokenizer may extend into another word."""
        vocabulary = self.tokenizer.get_vocab() if self._unigram else ()
        return not any(_WORD in token.lstrip(_WORD) for token in vocabulary)

    def _is_certain(self, before: int, after: int) -> bool:
        """Returns whether a boundary between two tokens is independent of the surrounding text."""
        if not self._unigram:
            return True
        last, first = self.tokenizer.convert_ids_to_tokens([int(before), int(after)])
        return first.startswith(_WORD) and not last.endswith(_WORD)


def _settles(piece: _Piece, count: float) -> bool:
    """Returns whether the first ``count`` tokens of a piece are taken as independent of the text after the piece.

    They are if :data:`MARGIN` tokens follow them, whose text contains white space or is longer than :data:`OVERLAP`.
    This is not a proof, unlike a joint: a tokenizer without words could merge over a longer distance.
    """
    if len(piece.ids) < count + MARGIN:
        return False
    behind = piece.text[int(piece.ends[int(count) - 1]) : int(piece.ends[-MARGIN // 2])]
    return any(map(str.isspace, behind)) or len(behind) > OVERLAP


def joined(parts: Sequence[Encoded]) -> Encoded:
    """Concatenates the tokens of consecutive parts of a text."""
    parts = [each for each in parts if len(each)] or [Encoded(np.empty(0, np.int64), np.empty(0, np.int64))]
    ends = [each.byte_ends for each in parts if each.byte_ends is not None]
    ids = np.concatenate([each.ids for each in parts])
    return Encoded(ids, np.concatenate(ends) if len(ends) == len(parts) else None)


def byte_ends_of(text: str, offsets: Sequence[tuple[int, int]]) -> np.ndarray:
    """Returns the number of UTF-8 bytes before each token's end.

    For a token that ends inside a character, this includes the whole character.
    """
    return byte_places(text, _ends(offsets))


def _ends(offsets: Sequence[tuple[int, int]]) -> np.ndarray:
    """Returns the number of characters before each token's end, int64."""
    ends = np.fromiter((end for _, end in offsets), np.int64, len(offsets))
    # A token without characters (a dummy prefix) has the offsets (0, 0), so the maximum keeps the ends ascending.
    return np.maximum.accumulate(ends) if ends.size else ends


def byte_places(text: str, ends: np.ndarray) -> np.ndarray:
    """Converts character positions in a text to UTF-8 byte positions, int64."""
    points = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    sizes = 1 + (points >= 0x80).astype(np.int64) + (points >= 0x800) + (points >= 0x10000)
    return np.concatenate([[0], np.cumsum(sizes)])[ends]


def _pieces(reading: Iterable[str]) -> Iterator[str]:
    """Yields a text in pieces, each twice as long as the previous one, up to :data:`PIECE` characters."""
    text, size = "", min(2 * OVERLAP, PIECE)
    for more in reading:
        text, at = text + more, 0
        while len(text) - at > size:
            yield text[at : at + size]
            at, size = at + size, min(2 * size, PIECE)
        text = text[at:]
    if text:
        yield text
