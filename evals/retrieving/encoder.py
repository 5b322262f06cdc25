"""Encodes text as it would be encoded within a longer text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ...errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Encoder:
    """A tokenizer that encodes parts of a text, without special tokens.

    Raises:
        DataError: the tokenizer does not preserve the ten digits.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self._stop = self.beginning(".")
        for digits in ("90817263545", "11223344556677889900"):
            back = self.text(self.inside(f" {digits}"))
            if digits not in "".join(back.split()):
                raise DataError(
                    f"the tokenizer cannot write numbers: {digits} comes back as {back[:60]!r}; "
                    "retrieval asks for numbers, so it needs a tokenizer that knows the ten digits"
                )

    def beginning(self, text: str) -> list[int]:
        """Returns the ids of a text at the beginning of a document."""
        return list(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def inside(self, text: str) -> list[int]:
        """Returns the ids of a text after a full stop, because sentencepiece puts a space before a document."""
        return self._after_stop(self.beginning(f".{text}"), text)

    def sentences(self, texts: Iterable[str]) -> list[list[int]]:
        """Returns the ids of many texts, each after a full stop."""
        given = list(texts)
        encoded = self.tokenizer([f".{text}" for text in given], add_special_tokens=False, verbose=False)["input_ids"]
        return [self._after_stop(list(ids), text) for ids, text in zip(encoded, given, strict=True)]

    def text(self, ids: Sequence[int]) -> str:
        """Returns the text of these ids."""
        return str(self.tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))

    def before(self, text: str, at: int) -> int:
        """Counts the tokens of ``inside(text)`` that end before its character ``at``."""
        return _common(self.inside(text), self.inside(text[:at]))

    def _after_stop(self, ids: list[int], text: str) -> list[int]:
        """Removes the full stop from the ids; encodes the text alone if its first token merged with the full stop."""
        first = len(self._stop)
        return ids[first:] if ids[:first] == self._stop else self.beginning(text)


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Counts the ids that both begin with."""
    return next((i for i, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))
