"""The shape of an existing ``ropescale.json``: every part that is read again is checked, once, by pydantic.

Only :func:`ropescale.checkpoints.metadata.record.read_record` imports this, and only where there is such a file:
pydantic takes longer to import than a patch takes.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from ...configs.section import LARGEST
from ...output.formatting import cut
from ...schedules import Frequencies

Length = Annotated[int, Field(gt=0, le=LARGEST)]
_LONGEST = 10_000
"""Characters of a schedule for people; a table of 256 pairs with every digit has half of that."""

PositiveFloat = Annotated[FiniteFloat, Field(gt=0)]


class _Stored(BaseModel):
    """A part of the record. Further keys are ignored."""

    model_config = ConfigDict(strict=True, frozen=True)


class StoredTable(_Stored):
    """The frequencies of one layer type."""

    inv_freq: list[FiniteFloat]
    attention_scale: PositiveFloat

    @property
    def frequencies(self) -> Frequencies:
        return Frequencies(self.inv_freq, self.attention_scale)


class StoredSide(StoredTable):
    """The frequencies that a layer type has at one length."""

    length: Length


class Undo(_Stored):
    """The way back to the source's configuration: values to set, and keys to remove."""

    changed: dict[str, object]
    added: list[str]

    def apply(self, config: dict[str, object]) -> dict[str, object]:
        """Returns the configuration as it was; keys keep their place where they have one."""
        return {key: value for key, value in config.items() if key not in self.added} | self.changed


class Record(_Stored):
    """The record of what ropescale did to a checkpoint; each mapping is by layer type.

    Attributes:
        version: the format's version, ``schema`` in the file.
        source: where the checkpoint came from.
        spec: the schedules.
        beneath: the scaling that a schedule was composed with, in words.
        frozen: the table that stands for a length-dependent schedule, in words.
        original_length: the trained lengths, in tokens.
        length: the context that the checkpoint is meant for, in tokens.
        tables: the frequencies at that length.
        switch: the frequencies at the trained length and one token past it, where they differ.
        softmax_factor: the factor on the softmax scale of MLA models; records of older versions lack it.
        original_config_sha256: the SHA-256 of the source's ``config.json``.
        undo: the way back to the source's configuration.
        files: the written files, see :func:`ropescale.checkpoints.metadata.record.files_in`.
    """

    version: Literal[1] = Field(alias="schema")
    source: str
    spec: dict[str, str]
    beneath: dict[str, str] = {}
    frozen: dict[str, str] = {}
    original_length: dict[str, Length]
    length: Length
    tables: dict[str, StoredTable]
    switch: dict[str, list[StoredSide]] = {}
    softmax_factor: dict[str, PositiveFloat] = {}
    original_config_sha256: str | None = None
    undo: Undo
    files: object = None

    @property
    def labels(self) -> dict[str, str]:
        """Each layer type's schedule for people, with the scaling that it was composed with."""
        labels = self.spec | self.frozen
        whole = {key: f"{text} on {self.beneath[key]}" if key in self.beneath else text for key, text in labels.items()}
        return {key: cut(text, _LONGEST) for key, text in whole.items()}

    @property
    def frequencies(self) -> dict[str, Frequencies]:
        """The tables that the checkpoint should have, by layer type."""
        return {key: table.frequencies for key, table in self.tables.items()}

    @property
    def sides(self) -> dict[str, dict[int, Frequencies]]:
        """:attr:`switch` by layer type and length."""
        return {key: {side.length: side.frequencies for side in sides} for key, sides in self.switch.items()}
