"""The folder of a reproduction, and the texts that its arms share."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import cast

import numpy as np

from ....errors import DataError
from ....models.loading import load_tokenizer
from ...data.documents import Document, Text
from ...running.progress import Notes
from .setting import Setting

_CHARACTERS = 8
"""Characters of a text that are encoded for each token that is wanted of it."""


@dataclass(frozen=True)
class Room:
    """The folder, what is reproduced, and who is told how it goes.

    ``arms/NAME`` is the checkpoint of a training, whose measurements lie in ``arms/NAME-training/measured``;
    ``measured/NAME`` is a measurement; ``models/NAME`` a model made from nothing. ``facts/NAME.json`` says what an arm
    was asked to do.
    """

    out: Path
    setting: Setting = field(default_factory=Setting)
    notes: Notes = field(default_factory=Notes)

    def checkpoint(self, arm: str) -> Path:
        """Returns where a training's result lies."""
        return self.out / "arms" / arm

    def trained_runs(self, arm: str) -> Path:
        """Returns where the measurements of a training lie."""
        return self.out / "arms" / f"{arm}-training" / "measured"

    def measured(self, arm: str) -> Path:
        """Returns where a measurement lies."""
        return self.out / "measured" / arm

    def made(self, arm: str) -> Path:
        """Returns where a model lies that was made here."""
        return self.out / "models" / arm

    def model(self, arm: str) -> Path:
        """Returns the model that an arm begins with: one that was made or trained here, or the setting's for none."""
        if not arm:
            return self.setting.folder
        return self.made(arm) if self.made(arm).exists() else self.checkpoint(arm)

    @cached_property
    def held_out(self) -> list[Text]:
        """The texts that everything is measured on."""
        return [Text(name, text) for name, text in self.setting.measured_on()]

    def heads(self, folder: Path, length: int, piece: int | None = None) -> list[Document]:
        """Returns the beginning of every training text that fills a window of ``length`` positions, BOS included.

        So each window begins where a document does, and no document is seen twice before all were seen once.

        Args:
            piece: cut each into windows of so many positions.

        Raises:
            DataError: no text is long enough.
        """
        found = _heads(self.setting, folder, length)
        if piece is None:
            return found
        return [each.part(start, start + piece - 1) for each in found for start in range(0, length - piece, piece - 1)]


@lru_cache(maxsize=4)
def _heads(setting: Setting, folder: Path, length: int) -> list[Document]:
    tokenizer, wanted = load_tokenizer(folder), length - 1
    texts = [text[: _CHARACTERS * wanted] for text in setting.trained_on() if len(text) >= wanted]
    encoded = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
    found = [np.asarray(ids[:wanted], np.int32) for ids in encoded if len(ids) >= wanted]
    if not found:
        raise DataError(f"no text to train on has {wanted:,} tokens")
    return [
        Document(
            f"head {number}", cast("Sequence[int]", ids), None, hashlib.sha256(ids.astype("<i8").tobytes()).hexdigest()
        )
        for number, ids in enumerate(found)
    ]
